"""Disjoint, complete, seeded, stratified; and what too small a fraction says."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from calibrant.training import interleaved_split
from calibrant.training.held_out import EvenBatches, even_size


@given(length=st.integers(40, 400), fraction=st.floats(0.1, 0.9), seed=st.integers(0, 2**31))
def test_the_parts_are_disjoint_and_together_everything(length: int, fraction: float, seed: int) -> None:
    train, calibration = interleaved_split(length, fraction, seed)
    assert sorted([*train.tolist(), *calibration.tolist()]) == list(range(length))
    assert len(calibration) == round(fraction * length)


def test_the_seed_names_the_split_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = interleaved_split(1000, seed=3)[1]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(first, interleaved_split(1000, seed=3)[1])
    assert not torch.equal(first, interleaved_split(1000, seed=4)[1])


def test_a_dataset_is_split_like_its_length() -> None:
    train, calibration = interleaved_split(TensorDataset(torch.arange(50)), 0.2, seed=5)
    indices = interleaved_split(50, 0.2, seed=5)
    for part, expected in zip((train, calibration), indices, strict=True):
        assert [int(part[place][0]) for place in range(len(part))] == expected.tolist()


@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_every_class_gives_its_share_to_within_one_sample(counts: list[int], seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    assume(round(0.25 * len(labels)) >= 3)
    calibration = interleaved_split(len(labels), 0.25, seed, stratify=labels.tolist())[1]
    held_out = labels[calibration].bincount(minlength=len(counts))
    share = round(0.25 * len(labels)) / len(labels)
    assert len(calibration) == round(0.25 * len(labels))
    assert all(abs(int(held_out[k]) - share * count) < 1 for k, count in enumerate(counts))


def test_stratified_splits_are_random_within_a_class() -> None:
    labels = torch.arange(200) % 2
    one, other = (interleaved_split(200, 0.1, seed, stratify=labels)[1] for seed in (0, 1))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((20, 0.1), {}, ValueError, "2 of 20"),
        ((4, 0.9), {}, ValueError, "none of 4"),
        ((100, 0.0), {}, ValueError, "got 0.0"),
        ((100, "0.1"), {}, TypeError, "calibration_fraction"),
        ((100,), {"minimum_samples": 50}, ValueError, "at least 50"),
        ((100,), {"stratify": [0, 1]}, ValueError, r"\(2,\)"),
        ((100,), {"stratify": torch.rand(100)}, ValueError, "integer label"),
        ((iter([1, 2]),), {}, TypeError, "length"),
    ],
)
def test_what_cannot_be_split_says_why(arguments, options, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        interleaved_split(*arguments, **options)


@pytest.mark.parametrize(("samples", "most"), [(129, 128), (10, 3), (100, 45), (7, 7), (5, 9), (401, 16)])
def test_batches_of_a_pass_have_nearly_equal_sizes(samples: int, most: int) -> None:
    batches = list(EvenBatches(range(samples), most))
    sizes = [len(batch) for batch in batches]
    assert len(sizes) == len(EvenBatches(range(samples), most)) == math.ceil(samples / most)
    assert max(sizes) - min(sizes) <= 1
    assert [sample for batch in batches for sample in batch] == list(range(samples))


@given(st.integers(1, 5000), st.integers(1, 600))
def test_a_size_for_loaders_that_take_one_is_never_larger_than_asked_for(samples: int, most: int) -> None:
    size = even_size(samples, most)
    assert min(most, 3) <= size <= most
    assert len(range(0, samples, size)) <= 2 * samples // most + 1
