"""Sets cover as often as promised, and are what the definitions say."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.metrics import coverage, mean_set_size
from calibrant.posthoc import ConformalClassifier
from calibrant.posthoc.conformal import uniform
from calibrant.posthoc.fit import random_words
from calibrant.posthoc.map import TorchOps
from tests.posthoc.data import overconfident

# Most fits here are small; test_conformal_kinds.py tests the warnings.
pytestmark = pytest.mark.filterwarnings("ignore::calibrant.posthoc.FitWarning")
SCORES: dict[str, dict[str, Any]] = {
    "lac": {"score": "lac"},
    "aps": {"score": "aps"},
    "aps, not randomised": {"score": "aps", "randomized": False},
    "top-k": {"score": "top-k"},
    "raps": {"score": "raps", "penalty": 0.05, "rank": 2},
    "raps, tuned": {"score": "raps", "penalty": "tune", "rank": "tune"},
    "raps, penalty tuned": {"score": "raps", "penalty": "tune", "rank": 2},
}


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_marginal_coverage(name: str, alpha: float) -> None:
    rates = []
    for seed in range(200):
        logits, target = overconfident(300, 6, 2.0, seed, spread=1.0)
        conformal = ConformalClassifier(alpha=alpha, seed=seed, **SCORES[name]).fit(logits[:100], target[:100])
        rates.append(coverage(conformal.predict_set(logits[100:]), target[100:]))
    # Over data sets the mean lies in [1 - alpha, 1 - alpha + 1/(n+1)]; its standard error here is below 0.004.
    assert np.mean(rates) > 1 - alpha - 0.01
    if name not in ("aps, not randomised", "top-k"):
        assert np.mean(rates) < 1 - alpha + 1 / 71 + 0.01


def scores_by_definition(row: list[float], name: str, u: float) -> list[float]:
    total = sum(math.exp(value) for value in row)
    p = [math.exp(value) / total for value in row]
    found = []
    for k in range(len(p)):
        above = [j for j in range(len(p)) if p[j] > p[k]]
        if name == "lac":
            found.append(1 - p[k])
        elif name == "top-k":
            found.append(len(above) + 1)
        else:
            penalty = 0.05 * max(0, len(above) + 1 - 2) if name == "raps" else 0.0
            found.append(sum(p[j] for j in above) + u * p[k] + penalty)
    return found


@pytest.mark.parametrize("name", ["lac", "aps", "raps", "top-k"])
def test_sets_are_those_of_the_definition(name: str) -> None:
    logits, target = overconfident(99, 5, 2.0, seed=0)
    conformal = ConformalClassifier(name, 0.2, randomized=False, penalty=0.05, rank=2).fit(logits, target)  # type: ignore[arg-type]
    scores = [scores_by_definition(row, name, 1.0) for row in logits.tolist()]
    of_true = sorted(row[y] for row, y in zip(scores, target.tolist(), strict=True))
    assert conformal.quantile_ == pytest.approx(of_true[79], rel=1e-12)  # ceil(100 * 0.8) = 80th
    new = overconfident(50, 5, 2.0, seed=1)[0]
    expected = [[s <= of_true[79] for s in scores_by_definition(row, name, 1.0)] for row in new.tolist()]
    assert conformal.predict_set(new).tolist() == expected


def test_rows_one_by_one_have_the_sets_of_the_batch() -> None:
    logits, target = overconfident(400, 10, 2.0, seed=6, spread=1.0)
    for dtype in (torch.float32, torch.float64):
        new = logits[200:].to(dtype)
        conformal = ConformalClassifier("aps").fit(logits[:200].to(dtype), target[:200])
        batch = conformal.predict_set(new)
        assert torch.equal(torch.cat([conformal.predict_set(row) for row in new.split(1)]), batch)
        assert torch.equal(conformal.predict_set(new.flip(0)).flip(0), batch)


def test_repeated_rows_are_covered_for_every_seed() -> None:
    few, _ = overconfident(5, 4, 1.0, seed=8, spread=1.0)
    generator = torch.Generator().manual_seed(9)
    logits = few[torch.randint(5, (4000,), generator=generator)]
    target = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    for seed in range(10):
        conformal = ConformalClassifier("aps", 0.2, seed=seed).fit(logits[:2000], target[:2000])
        assert coverage(conformal.predict_set(logits[2000:]), target[2000:]) > 0.8 - 0.03


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hashed_numbers_are_uniform_and_unrelated(dtype: torch.dtype, classes: int) -> None:
    logits = torch.linspace(-3, 3, 5000, dtype=dtype).unsqueeze(1) * torch.arange(classes, dtype=dtype)  # in a line
    one, other = (uniform(TorchOps(), logits, seed).squeeze(1).double() for seed in (3, 4))
    even = (torch.arange(5000, dtype=torch.float64) + 0.5) / 5000
    assert (one.sort().values - even).abs().max() < 0.03
    for pair in ((one, other), (one[1:], one[:-1]), (one, logits[:, 1].double())):
        assert torch.corrcoef(torch.stack(pair))[0, 1].abs() < 0.06
    zeros = torch.zeros(1, 2)
    assert torch.equal(uniform(TorchOps(), zeros, 0), uniform(TorchOps(), -zeros, 0))


@pytest.mark.parametrize("cast", [torch.float32, torch.float16, torch.bfloat16])
def test_a_cast_does_not_void_coverage_where_scores_tie(cast: torch.dtype) -> None:
    logits = torch.tensor([[0.3, 0.0, 0.1], [0.0, 0.7, 0.2], [0.1, 0.2, 0.9]], dtype=torch.float64).repeat(10, 1)
    target = torch.arange(30) % 3
    conformal = ConformalClassifier("lac", 0.1).fit(logits, target)
    before = conformal.predict_set(logits)
    assert torch.equal(conformal.module().to(cast)(logits), before)


def test_nothing_is_told_before_fitting() -> None:
    conformal, logits = ConformalClassifier(), torch.zeros(1, 3)
    for use in (lambda: conformal.quantile_, lambda: conformal(logits), lambda: conformal.predict_set(logits)):
        with pytest.raises(RuntimeError, match="not fitted"):
            use()


def test_alpha_next_to_one_takes_the_smallest_score() -> None:
    logits, target = overconfident(50, 3, 1.0, seed=0)
    smallest = (1 - logits.softmax(1).gather(1, target.unsqueeze(1))).min().item()
    assert ConformalClassifier("lac", 1 - 1e-12).fit(logits, target).quantile_ == smallest


def test_randomness_is_named() -> None:
    logits, target = overconfident(300, 10, 1.0, seed=4, spread=1.0)
    one, same, other = (ConformalClassifier("aps", seed=seed).fit(logits, target) for seed in (0, 0, 1))
    assert torch.equal(one.predict_set(logits), same.predict_set(logits))
    assert torch.equal(one.predict_set(logits), one.predict_set(logits))
    assert not torch.equal(one.predict_set(logits), other.predict_set(logits))


def test_binary_logits_have_sets_of_two_classes() -> None:
    logits, target = overconfident(300, 2, 2.0, seed=5)
    one = logits[:, 1] - logits[:, 0]
    conformal = ConformalClassifier("raps", penalty="tune", rank="tune").fit(one.numpy(), target.numpy())
    sets = conformal.predict_set(one.numpy())
    assert sets.shape == (300, 2)
    assert isinstance(sets, np.ndarray)
    np.testing.assert_array_equal(sets, conformal.predict_set(one).numpy())
    assert torch.equal(conformal(one), conformal.predict_set(one))


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"score": "thr"}, ValueError, "score .*'raps'"),
    ({"coverage": "mondrian"}, ValueError, "coverage .*'marginal'"),
    ({"tune_for": "speed"}, ValueError, "tune_for .*'size'"),
    ({"alpha": 0.0}, ValueError, "alpha .*above 0"),
    ({"penalty": "auto"}, ValueError, "penalty .*'tune'"),
    ({"rank": -1}, ValueError, "rank .*at least 0"),
    ({"rank": 2.5}, TypeError, "rank .*whole"),
    ({"seed": 1.7}, TypeError, "seed .*whole"),
])  # fmt: skip
def test_bad_options_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ConformalClassifier(**options)


def test_tuning_needs_two_samples() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        ConformalClassifier("raps", penalty="tune").fit(torch.zeros(1, 3), torch.tensor([0]))


def tuned_by_definition(logits: Tensor, target: Tensor, alpha: float, goal: str) -> tuple[float, int]:
    """Penalty and rank from the 30 % of the samples that the seed 0 draws, with U = 1."""
    order = random_words(0, len(logits)).argsort().tolist()
    drawn = order[: math.ceil(0.3 * len(logits))]
    rows, labels = [logits[i].softmax(0).tolist() for i in drawn], [int(target[i]) for i in drawn]
    place = math.ceil((len(drawn) + 1) * (1 - alpha))
    rank = sorted(sum(p >= row[y] for p in row) for row, y in zip(rows, labels, strict=True))[place - 1]
    costs: dict[float, float] = {}
    for penalty in (0.001, 0.01, 0.1, 0.2, 0.5) if goal == "size" else (0, 1e-5, 1e-4, 8e-4, 9e-4, 1e-3, 1.5e-3, 2e-3):
        scores = [
            [sum(q for q in row if q >= p) + penalty * max(0, sum(q >= p for q in row) - rank) for p in row]
            for row in rows
        ]
        limit = sorted(row[y] for row, y in zip(scores, labels, strict=True))[place - 1]
        sizes = [sum(s <= limit for s in row) for row in scores]
        if goal == "size":
            costs[penalty] = sum(sizes)
            continue
        hits = [row[y] <= limit for row, y in zip(scores, labels, strict=True)]
        gaps = []
        for low, high in ((0, 1), (2, 3), (4, 6), (7, 10), (11, 100)):
            here = [hit for hit, size in zip(hits, sizes, strict=True) if low <= size <= high]
            gaps += [abs(sum(here) / len(here) - (1 - alpha))] if here else []
        costs[penalty] = max(gaps)
    return min(costs, key=lambda penalty: (costs[penalty], penalty)), rank


@pytest.mark.parametrize("goal", ["size", "size-stratified coverage"])
@pytest.mark.parametrize("seed", range(4))
def test_tuned_parameters_are_those_of_the_definition(goal: Any, seed: int) -> None:
    logits, target = overconfident(600, 30, 1.0, seed=seed, spread=1.0 + 0.5 * seed)
    conformal = ConformalClassifier("raps", randomized=False, penalty="tune", rank="tune", tune_for=goal)
    conformal.fit(logits, target)
    assert (conformal.penalty_, conformal.rank_) == tuned_by_definition(logits, target, 0.1, goal)


def test_tuned_sets_are_smaller_than_those_of_aps_and_cover_as_often() -> None:
    logits, target = overconfident(20_000, 100, 0.5, seed=11, spread=4.0)
    sizes, rates = [], []
    for options in ({"score": "aps"}, {"score": "raps", "penalty": "tune", "rank": "tune"}):
        conformal = ConformalClassifier(**options).fit(logits[:10_000], target[:10_000])  # type: ignore[arg-type]
        sets = conformal.predict_set(logits[10_000:])
        sizes.append(mean_set_size(sets))
        rates.append(coverage(sets, target[10_000:]))
    assert sizes[1] < 0.97 * sizes[0]
    assert rates == pytest.approx([0.9, 0.9], abs=0.015)


def test_ranks_are_those_of_the_logits_where_probabilities_underflow() -> None:
    logits, target = torch.tensor([[900.0, 1.0, 0.0, 2.0]]).repeat(200, 1), torch.tensor([0, 3]).repeat(100)
    conformal = ConformalClassifier("top-k").fit(logits, target)
    assert conformal.quantile_ == 2
    assert conformal.predict_set(logits[:1]).tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "top-k"])
def test_a_row_in_another_order_has_the_same_set(score: Any) -> None:
    # Sums of the same probabilities in another order differ by rounding, also at the threshold.
    row = torch.tensor([0.3, 1.7, -0.4, 0.9, 2.2, 0.1, -1.3])
    orders = torch.stack([torch.randperm(7, generator=torch.Generator().manual_seed(seed)) for seed in range(300)])
    target = (orders == 3).int().argmax(1)
    conformal = ConformalClassifier(score, randomized=False).fit(row[orders], target)
    sets = conformal.predict_set(row[orders])
    assert sets.gather(1, target.unsqueeze(1)).all()
    assert torch.equal(sets, torch.isin(orders, torch.tensor([1, 3, 4])))
