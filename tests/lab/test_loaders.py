"""Validation first, the calibration part from the rest, the same for every objective of a seed."""

import torch

from calibrant_lab.loaders import make_loaders, split
from calibrant_lab.recipes import RECIPES

DIGITS = RECIPES["digits"]


def test_the_parts_are_disjoint_and_validation_is_the_same_with_and_without_a_held_out_part() -> None:
    plain = split(DIGITS, 1000, hold_out=False, minimum_samples=3)
    held = split(DIGITS, 1000, hold_out=True, minimum_samples=3)
    reduced = split(DIGITS.replaced({"reduced_split": True}), 1000, hold_out=False, minimum_samples=3)
    assert held.calibration is not None
    assert [len(part) for part in (held.train, held.calibration, held.validation)] == [810, 90, 100]
    assert torch.cat(held).sort().values.equal(torch.arange(1000))  # type: ignore[arg-type]
    assert plain.validation.equal(held.validation)
    assert len(plain.train) == 900
    assert plain.calibration is None
    assert reduced.train.equal(held.train)
    assert reduced.calibration is None


def test_the_seed_names_the_split() -> None:
    one, other = (split(DIGITS.replaced({"seed": s}), 1000, hold_out=True, minimum_samples=3) for s in (0, 1))
    assert not one.validation.equal(other.validation)


def test_text_brings_its_own_validation() -> None:
    assert len(split(RECIPES["snli"], 1000, hold_out=False, minimum_samples=3).validation) == 0


def test_batches_have_the_sizes_of_the_configuration() -> None:
    configuration = DIGITS.replaced({"objective": "esd", "batch_size": 100, "calibration_batch_size": 50})
    loaders = make_loaders(configuration, None, hold_out=True, minimum_samples=3)
    assert loaders.calibration is not None
    sizes = [[len(labels) for _, labels in part] for part in (loaders.train, loaders.calibration)]
    assert sizes == [[100] * 11 + [64], [50, 50, 29]]
    assert [sum(len(labels) for _, labels in part) for part in (loaders.validation, loaders.test)] == [144, 360]
    assert (loaders.classes, loaders.channels) == (10, 1)
