"""Folds follow the samples: not their order, not the processor, not the weights."""

import numpy as np
import pytest

from calibrant.posthoc.fit import HeldOut, canonical_order, fold_of, random_words
from tests.posthoc.data import overconfident

LOGITS, TARGET = (part.numpy() for part in overconfident(503, 4, 2.0, seed=9))


def test_folds_are_even_in_every_class_and_follow_the_samples() -> None:
    fold = fold_of(HeldOut(LOGITS, TARGET, None), 5)
    for k in range(4):
        counts = np.bincount(fold[k == TARGET], minlength=5)
        assert counts.max() - counts.min() <= 1
    shuffled = np.random.default_rng(0).permutation(503)
    other = HeldOut(LOGITS[shuffled], TARGET[shuffled], None)
    assert np.array_equal(fold_of(other, 5), fold[shuffled])
    assert np.array_equal(other.logits[canonical_order(other)], LOGITS[canonical_order(HeldOut(LOGITS, TARGET, None))])


@pytest.mark.parametrize("classes", [2, 10])
def test_the_last_bits_of_the_logits_do_not_move_samples(classes: int) -> None:
    logits, target = (part.numpy() for part in overconfident(2000, classes, 2.0, seed=1))
    draw = np.random.default_rng(0)
    moved = logits * (1 + draw.integers(-4, 5, logits.shape) * np.finfo(np.float64).eps)
    one, other = (fold_of(HeldOut(each, target, None), 5) for each in (logits, moved))
    assert np.array_equal(one, other)
    single = logits.astype(np.float32)
    moved = single * (1 + draw.integers(-2, 3, logits.shape).astype(np.float32) * np.finfo(np.float32).eps)
    one, other = (fold_of(HeldOut(each, target, None), 5) for each in (single, moved))
    assert (one != other).mean() < 0.005


def test_a_sample_is_in_one_fold_whatever_its_weight() -> None:
    weight = np.random.default_rng(0).uniform(0.1, 9.0, 503)
    assert np.array_equal(fold_of(HeldOut(LOGITS, TARGET, weight), 5), fold_of(HeldOut(LOGITS, TARGET, None), 5))


def test_random_words_are_those_of_the_reference_splitmix() -> None:
    assert random_words(0, 2).tolist() == [-2152535657050944081, 7960286522194355700]
