"""Folds follow the samples: not their order, not the processor, and copies as weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.posthoc.cross_validation import HeldOut, canonical_order, pieces, random_words, row_hash
from tests.posthoc.data import overconfident

LOGITS, TARGET = (part.numpy() for part in overconfident(503, 4, 2.0, seed=9))


def test_folds_are_even_in_every_class_and_follow_the_samples() -> None:
    fold = pieces(HeldOut(LOGITS, TARGET, None), 5).fold
    for k in range(4):
        counts = np.bincount(fold[k == TARGET], minlength=5)
        assert counts.max() - counts.min() <= 1
    shuffled = np.random.default_rng(0).permutation(503)
    other = HeldOut(LOGITS[shuffled], TARGET[shuffled], None)
    assert np.array_equal(pieces(other, 5).fold, fold[shuffled])
    assert np.array_equal(other.logits[canonical_order(other)], LOGITS[canonical_order(HeldOut(LOGITS, TARGET, None))])


@pytest.mark.parametrize("classes", [2, 10])
def test_the_last_bits_of_the_logits_do_not_move_samples(classes: int) -> None:
    logits, target = (part.numpy() for part in overconfident(2000, classes, 2.0, seed=1))
    draw = np.random.default_rng(0)
    moved = logits * (1 + draw.integers(-4, 5, logits.shape) * np.finfo(np.float64).eps)
    one, other = (pieces(HeldOut(each, target, None), 5).fold for each in (logits, moved))
    assert np.array_equal(one, other)
    single = logits.astype(np.float32)
    moved = single * (1 + draw.integers(-2, 3, logits.shape).astype(np.float32) * np.finfo(np.float32).eps)
    one, other = (pieces(HeldOut(each, target, None), 5).fold for each in (single, moved))
    assert (one != other).mean() < 0.005


@settings(max_examples=50, deadline=None)
@given(samples=st.integers(1, 60), folds=st.integers(2, 6), distinct=st.integers(1, 20), seed=st.integers(0, 1000))
def test_a_weight_is_divided_among_folds_as_copies_are(samples: int, folds: int, distinct: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(distinct, 3))[draw.integers(distinct, size=samples)]
    target, weight = draw.integers(3, size=samples), draw.integers(1, 9, samples)
    copied = pieces(HeldOut(logits.repeat(weight, 0), target.repeat(weight), None), folds)
    weighted = pieces(HeldOut(logits, target, weight.astype(float)), folds)
    for fold in range(folds):
        part, rows = weighted.data.take(weighted.fold == fold), copied.data.take(copied.fold == fold)
        counts = np.ones(len(part.target), int) if part.weight is None else part.weight.round().astype(int)
        again = HeldOut(part.logits.repeat(counts, 0), part.target.repeat(counts), None)
        assert again.take(canonical_order(again)).logits.tolist() == rows.take(canonical_order(rows)).logits.tolist()


def test_weights_of_any_size_are_divided_without_loss() -> None:
    draw = np.random.default_rng(0)
    for weight in (10 ** (40 * draw.random(503) - 20), np.full(503, 1e-30), np.full(503, 1e30), draw.random(503)):
        divided = pieces(HeldOut(LOGITS, TARGET, weight), 5)
        assert divided.data.weight is not None
        assert divided.data.weight.sum() == pytest.approx(weight.sum())
        assert len(np.unique(divided.fold)) > 1 or weight.max() > 0.2 * weight.sum()


def test_hashes_are_uniform_and_the_same_everywhere() -> None:
    import torch

    hashed = row_hash(LOGITS, 3)
    assert np.array_equal(row_hash(torch.from_numpy(LOGITS), 3).numpy(), hashed)
    assert len(np.unique(hashed)) == 503
    assert abs(hashed.mean() / 2**32 - 0.5) < 0.05
    assert random_words(0, 2).tolist() == [-2152535657050944081, 7960286522194355700]  # of the reference SplitMix64
