"""What a recipe's data may not be: one line that names the part."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from calibrant_lab import Data

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6) % 3


def with_value(value: float) -> np.ndarray:
    x = X.copy()
    x[4:, 1] = value
    return x


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_inputs_that_are_not_finite_name_the_part_and_the_first_row(value: float) -> None:
    with pytest.raises(ValueError, match=r"\Atest: row 4 has a NaN or infinite input: "):
        Data((X, Y), (with_value(value), Y))


@pytest.mark.parametrize("x", [X, X[:, 0], X.astype(int), np.zeros((6, 0)), torch.ones(6, 1, 2, 2)])
def test_inputs_of_any_shape_and_type_are_taken(x: Any) -> None:
    assert Data((x, Y), (x, Y)).classes == 3


def test_one_class_is_refused_unless_the_number_is_given() -> None:
    for label in (0, 1):
        y = np.full(6, label)
        with pytest.raises(
            ValueError, match=rf"\Aall labels are {label}: give data of at least 2 classes, or classes="
        ):
            Data((X, y), (X, y))
        assert Data((X, y), (X, y), classes=2).classes == 2


@pytest.mark.parametrize("y", [list("abcabc"), np.array(list("abcabc")), pd.Series(list("abcabc"))])
def test_labels_that_are_strings_are_refused(y: Any) -> None:
    with pytest.raises(
        ValueError, match=r"\Atrain: labels must be class indices, got strings or other objects: number"
    ):
        Data((X, y), (X, Y))
    with pytest.raises(ValueError, match="labels must be class indices, got strings"):
        Data(list(zip(X, y, strict=True)), (X, Y))


def test_labels_of_a_data_frame_are_taken() -> None:
    assert Data((X, pd.Series(Y)), (X, Y)).train.labels.tolist() == Y.tolist()
