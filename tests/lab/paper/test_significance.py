"""Paired tests: against scipy, and against going through all signs one by one."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from calibrant.metrics.tests import holm
from calibrant_lab.paper.tables.significance import Verdict, compare, least_p, paired_test

SAMPLES = [np.random.default_rng(seed).normal(0.5, 1.0, size=size) for seed, size in enumerate([2, 3, 5, 5, 8, 11])]


@pytest.mark.parametrize("differences", SAMPLES, ids=len)
def test_the_t_test_and_its_interval_are_scipys(differences: np.ndarray) -> None:
    found = paired_test(list(differences))
    reference = stats.ttest_1samp(differences, 0.0)
    interval = reference.confidence_interval(0.95)
    assert found.p_t == pytest.approx(reference.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.difference == pytest.approx(differences.mean())
    assert found.pairs == len(differences)


@pytest.mark.parametrize(
    "differences", [*SAMPLES, np.array([1.0, 1.0, -1.0, 2.0]), np.array([0.1, 0.2, -0.3, 0.3])], ids=len
)
def test_the_permutation_test_counts_all_signs(differences: np.ndarray) -> None:
    observed = abs(differences.sum()) - 1e-9
    sums = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    assert paired_test(list(differences)).p_permutation == pytest.approx(np.mean([one >= observed for one in sums]))


@pytest.mark.parametrize("pairs", [2, 30])
def test_the_permutation_test_reaches_its_least_p_and_many_seeds_take_no_time(pairs: int) -> None:
    assert paired_test([1.0 + seed / 100 for seed in range(pairs)]).p_permutation == least_p(pairs)


@pytest.mark.parametrize(
    ("differences", "p"), [([0.0, 0.0, 0.0], 1.0), ([0.2, 0.2, 0.2], 0.25), ([0.1 + 0.2, 0.3, 0.3, 0.3, 0.3], 0.0625)]
)
def test_equal_differences_have_the_p_of_the_permutation_test(differences: list[float], p: float) -> None:
    found = paired_test(differences)
    assert found.p_t == found.p_permutation == p
    assert found.low == found.high == pytest.approx(differences[-1])


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, math.nan]])
def test_too_few_differences_are_refused(differences: list[float]) -> None:
    with pytest.raises(ValueError, match="differences"):
        paired_test(differences)


@pytest.mark.parametrize(
    ("shift", "better", "verdict"),
    [(3.0, 1, "better"), (3.0, -1, "worse"), (-3.0, -1, "better"), (0.0, 1, "unclear"), (None, 1, "equal")],
)
def test_the_verdict_knows_which_way_is_better(shift: float | None, better: int, verdict: Verdict) -> None:
    noise = [-0.2, 0.1, 0.0, 0.15, -0.05]
    base = {seed: 10.0 + seed for seed in range(5)}
    other = {seed: base[seed] if shift is None else base[seed] + shift + noise[seed] for seed in range(5)}
    results = {"a": {"m": base}, "b": {"m": other}}
    [found] = compare(results, [("b", "a")], {"m": better})
    assert (found.method, found.against, found.verdict) == ("b", "a", verdict)


def test_seeds_are_paired_by_number_and_what_is_missing_is_left_out() -> None:
    results = {"a": {"m": {0: 1.0, 1: 2.0, 2: 4.0}}, "b": {"m": {2: 4.5, 1: 2.25, 7: 0.0}}}
    [found] = compare(results, [("b", "a")], {"m": 1})
    assert found.paired.pairs == 2
    assert found.paired.difference == pytest.approx(0.375)
    assert compare(results, [("b", "a")], {}) == ()
    without = {0: math.nan, 1: 2.25, 2: 4.5}, {2: 4.5, 7: 0.0}
    assert all(compare(results | {"b": {"m": one}}, [("b", "a")], {"m": 1}) == () for one in without)


def test_all_comparisons_are_corrected_together() -> None:
    random = np.random.default_rng(0)
    results = {
        name: {key: dict(enumerate(random.normal(size=5))) for key in ("accuracy", "ece")} for name in ("a", "b", "c")
    }
    found = compare(results, [("b", "a"), ("c", "a")], {"accuracy": 1, "ece": -1})
    assert [one.p_holm for one in found] == holm([one.paired.p_t for one in found])
    assert len(found) == 4
