"""The parts of a recipe's data: what they may be, and one line that names the part if they may not."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from calibrant_lab import Data

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6) % 3


@pytest.mark.parametrize("x", [X, X[:, 0], X.astype(int), np.zeros((6, 0)), torch.ones(6, 1, 2, 2)])
def test_inputs_of_any_shape_and_type_are_taken(x: Any) -> None:
    data = Data((x, pd.Series(Y)), (x, Y))
    assert data.classes == 3
    assert data.train.labels.tolist() == Y.tolist()


def test_one_class_needs_the_number_of_classes() -> None:
    y = np.full(6, 1)
    assert Data((X, y), (X, y), classes=2).classes == 2


def with_value(value: float) -> np.ndarray:
    return np.where(np.arange(12).reshape(6, 2) == 9, value, X)


LETTERS = list("abcabc")
ERRORS: list[tuple[Any, str]] = [
    *(((X, Y, with_value(value), Y), r"\Atest.*row 4") for value in (np.nan, np.inf, 1e300)),
    *(((X, np.full(6, label), X, np.full(6, label)), "classes=") for label in (0, 1)),
    *(((X, y, X, Y), r"\Atrain.*strings") for y in (LETTERS, np.array(LETTERS), pd.Series(LETTERS))),
    ((X, Y[:5], X, Y), "5 labels"),
    ((X, Y / 2, X, Y), "whole numbers"),
    ((X, Y - 1, X, Y), "-1.*from 0"),
]


@pytest.mark.parametrize(("parts", "token"), ERRORS)
def test_errors(parts: Any, token: str) -> None:
    x, y, test_x, test_y = parts
    with pytest.raises(ValueError, match=token):
        Data((x, y), (test_x, test_y))


@pytest.mark.parametrize(
    ("make", "error", "token"),
    [
        (lambda: Data(list(zip(X, LETTERS, strict=True)), (X, Y)), ValueError, "strings"),
        (lambda: Data((X, Y), (X, Y), classes=2), ValueError, "2 classes"),
        (lambda: Data(*[(X, Y)] * 3), TypeError, "positional"),
        (lambda: Data(3, (X, Y)), TypeError, "train"),
    ],
)
def test_errors_of_the_whole(make: Any, error: type[Exception], token: str) -> None:
    with pytest.raises(error, match=token):
        make()
