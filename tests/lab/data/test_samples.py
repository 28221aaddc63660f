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
STRINGS = LETTERS, np.array(LETTERS), pd.Series(LETTERS)
ERRORS: list[tuple[Any, str]] = [
    *(
        (lambda value=value: Data((X, Y), (with_value(value), Y)), r"\Atest.*row 4")
        for value in (np.nan, np.inf, 1e300)
    ),
    *((lambda y=y: Data((X, y), (X, y)), "classes=") for y in (np.zeros(6, int), np.ones(6, int))),
    *((lambda y=y: Data((X, y), (X, Y)), r"\Atrain.*strings") for y in STRINGS),
    (lambda: Data((X, Y[:5]), (X, Y)), "5 labels"),
    (lambda: Data((X, Y / 2), (X, Y)), "whole numbers"),
    (lambda: Data((X, Y - 1), (X, Y)), "-1.*from 0"),
    (lambda: Data(list(zip(X, LETTERS, strict=True)), (X, Y)), "strings"),
    (lambda: Data((X, Y), (X, Y), classes=2), "2 classes"),
    (lambda: Data(*[(X, Y)] * 3), "positional"),
    (lambda: Data(3, (X, Y)), "train"),
]


@pytest.mark.parametrize(("make", "token"), ERRORS)
def test_errors(make: Any, token: str) -> None:
    with pytest.raises((ValueError, TypeError), match=token):
        make()
