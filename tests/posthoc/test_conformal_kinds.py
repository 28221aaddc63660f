"""Coverage of each class and each group, groups of any labels, and warnings about few samples."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from torch import Tensor

from calibrant.metrics import group_coverage
from calibrant.posthoc import ConformalClassifier, FitWarning, load, save
from calibrant.posthoc.conformal import (
    conformal_quantile,
    coverage_range,
    fewest_samples,
    place_of_quantile,
)
from calibrant.posthoc.map import TorchOps
from tests.posthoc.data import notices, overconfident

SMALL = "ignore::calibrant.posthoc.FitWarning"
KINDS: list[Any] = ["marginal", "class-conditional", "group-conditional"]
SCORES: list[Any] = ["lac", "aps", "raps", "top-k"]


def unequal(samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits that favour class 0, labels, and groups of which group 1 is harder."""
    draw = torch.Generator().manual_seed(seed)
    groups = (torch.rand(samples, generator=draw) < 0.3).long()
    true = 3 * torch.randn(samples, 5, generator=draw, dtype=torch.float64)
    true = torch.where(groups.unsqueeze(1) == 1, true / 4, true)
    target = true.softmax(1).multinomial(1, generator=draw).squeeze(1)
    return true + torch.tensor([1.5, 0.0, 0.0, 0.0, -1.5]), target, groups


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("score", SCORES)
def test_classes_and_groups_are_covered_where_marginal_sets_fail(score: Any) -> None:
    rates: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for seed in range(30):
        logits, target, groups = unequal(4000, seed)
        for kind in KINDS:
            fitted, new = (groups[:2000], groups[2000:]) if kind == "group-conditional" else (None, None)
            conformal = ConformalClassifier(score, 0.1, coverage=kind, rank=2, seed=seed)
            conformal.fit(logits[:2000], target[:2000], groups=fitted)
            sets = conformal.predict_set(logits[2000:], groups=new)
            by_class, by_group = (
                group_coverage(sets, target[2000:], labels) for labels in (target[2000:], groups[2000:])
            )
            rates[kind].append([by_class[k] for k in range(5)] + [by_group[g] for g in range(2)])
    mean = {kind: np.mean(rates[kind], axis=0) for kind in KINDS}
    # A class or group has at least 500 samples in 30 fits and 30 tests: standard errors are below 0.005.
    assert mean["class-conditional"][:5].min() > 0.9 - 0.015
    assert mean["group-conditional"][5:].min() > 0.9 - 0.015
    if score != "top-k":  # its ranks tie
        assert mean["class-conditional"][:5].max() < 0.9 + 0.015
        assert mean["group-conditional"][5:].max() < 0.9 + 0.015
        assert mean["group-conditional"][4] < 0.9 - 0.03  # a guarantee for groups is none for classes
    assert mean["marginal"][4] < 0.9 - 0.03
    assert mean["marginal"][6] < 0.9 - 0.03


def sets_by_definition(
    scores: Tensor, new: Tensor, target: Tensor, part: list[Any], new_part: list[Any] | None, alpha: float
) -> list[list[bool]]:
    """Sets from a list of the scores of each part; ``new_part`` None: the part is the class itself."""

    def limit(of: Any) -> float:
        mine = sorted(float(row[y]) for row, y, p in zip(scores, target.tolist(), part, strict=True) if p == of)
        place = math.ceil((len(mine) + 1) * (1 - alpha) - 1e-9)
        return mine[place - 1] if place <= len(mine) else math.inf

    if new_part is None:
        return [[float(s) <= limit(k) for k, s in enumerate(row)] for row in new]
    return [[float(s) <= limit(of) for s in row] for row, of in zip(new, new_part, strict=True)]


@pytest.mark.filterwarnings(SMALL)
@pytest.mark.parametrize("score", SCORES)
def test_sets_are_those_of_the_definition(score: Any) -> None:
    logits, target, groups = unequal(150, seed=0)
    new, _, new_groups = unequal(40, seed=1)
    names = ["ab"[g] for g in groups.tolist()]
    marginal = ConformalClassifier(score, 0.2, rank=1, penalty=0.1).fit(logits, target)
    scores, new_scores = (marginal.map_.scores(TorchOps(), rows) for rows in (logits, new))
    by_class = ConformalClassifier(score, 0.2, rank=1, penalty=0.1, coverage="class-conditional").fit(logits, target)
    expected = sets_by_definition(scores, new_scores, target, target.tolist(), None, 0.2)
    assert by_class.predict_set(new).tolist() == expected
    by_group = ConformalClassifier(score, 0.2, rank=1, penalty=0.1, coverage="group-conditional")
    by_group.fit(logits, target, groups=names)
    new_names = ["ab"[g] for g in new_groups.tolist()]
    expected = sets_by_definition(scores, new_scores, target, names, new_names, 0.2)
    assert by_group.predict_set(new, groups=new_names).tolist() == expected
    assert by_group.module()(new, new_groups).tolist() == expected


@pytest.mark.filterwarnings(SMALL)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_sets_cover_the_fitted_samples_whatever_the_shape_and_ties(data: st.DataObject) -> None:
    samples, classes = data.draw(st.integers(1, 40)), data.draw(st.integers(2, 6))
    cells = st.lists(st.integers(-2, 2), min_size=samples * classes, max_size=samples * classes)
    logits = torch.tensor(data.draw(cells), dtype=torch.float32).reshape(samples, classes)
    target = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=samples, max_size=samples)))
    groups = data.draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=samples, max_size=samples))
    alpha = data.draw(st.sampled_from([0.1, 0.25, 0.5]))
    kind = data.draw(st.sampled_from(KINDS))
    options: Any = {"groups": groups} if kind == "group-conditional" else {}
    conformal = ConformalClassifier(data.draw(st.sampled_from(SCORES)), alpha, coverage=kind, rank=1)
    sets = conformal.fit(logits, target, **options).predict_set(logits, **options)
    assert sets.shape == (samples, classes)
    parts = {"marginal": [0] * samples, "class-conditional": target.tolist(), "group-conditional": groups}[kind]
    for part in set(parts):
        mine = torch.tensor([p == part for p in parts])
        hits = sets[mine].gather(1, target[mine].unsqueeze(1))
        assert int(hits.sum()) >= min(int(mine.sum()), place_of_quantile(int(mine.sum()), alpha))


def test_groups_may_have_any_container_and_label() -> None:
    pandas = pytest.importorskip("pandas")
    logits, target, groups = unequal(1200, seed=2)
    numbers = groups.tolist()
    first = ConformalClassifier(coverage="group-conditional").fit(logits, target, groups=groups)
    expected = first.predict_set(logits, groups=groups)
    assert first.groups_ == (0, 1)
    for same in (numbers, groups.numpy(), groups.to(torch.int32), pandas.Series(numbers), iter(numbers)):
        conformal = ConformalClassifier(coverage="group-conditional").fit(logits, target, groups=same)
        assert conformal.groups_ == (0, 1)
        assert torch.equal(conformal.predict_set(logits, groups=numbers), expected)
    names = ["one" if g else "none" for g in numbers]
    for others in (names, np.array(names), np.array(names, object), pandas.Series(names, dtype="category"),
                   [("north", name, 3) for name in names]):  # fmt: skip
        conformal = ConformalClassifier(coverage="group-conditional").fit(logits, target, groups=others)
        assert torch.equal(conformal.predict_set(logits, groups=others), expected)
    in_numpy = conformal.predict_set(logits.numpy(), groups=others)
    np.testing.assert_array_equal(in_numpy, expected.numpy())
    conformal.fit(logits, target, groups=["a" if g else 7 for g in numbers])
    assert conformal.groups_ == (7, "a")


def test_an_unknown_group_gets_every_class_and_a_warning() -> None:
    logits, target, groups = unequal(1200, seed=3)
    conformal = ConformalClassifier(coverage="group-conditional").fit(logits, target, groups=groups)
    with pytest.warns(FitWarning, match=r"^1 group .*: 5$"):
        sets = conformal.predict_set(logits[:3], groups=[0, 5, 1])
    assert sets[1].all()
    assert torch.equal(sets[[0, 2]], conformal.predict_set(logits[[0, 2]], groups=[0, 1]))
    assert conformal.module()(logits[:3], torch.tensor([-1, 2, 99])).all()


def test_groups_of_ignored_samples_do_not_count() -> None:
    logits, target, groups = unequal(1200, seed=4)
    more = torch.cat((torch.full((5, 5), torch.nan), logits))
    conformal = ConformalClassifier(coverage="group-conditional")
    conformal.fit(more, torch.cat((torch.full((5,), -100), target)), groups=[8, 1, 8, 1, 8, *groups.tolist()])
    other = ConformalClassifier(coverage="group-conditional").fit(logits, target, groups=groups)
    assert conformal.quantiles_ == other.quantiles_


@pytest.mark.parametrize(("groups", "error", "message"), [
    (None, ValueError, "pass groups="),
    ([0, 1], ValueError, "100 labels, .*got 2"),
    (np.zeros((100, 2)), ValueError, r"\(100, 2\)"),
    ("a" * 100, TypeError, "got str"),
    ([0.5] * 99 + [math.nan], TypeError, "got nan"),
    ([None] * 100, TypeError, "got None"),
])  # fmt: skip
def test_bad_groups_are_explained(groups: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ConformalClassifier(coverage="group-conditional").fit(*overconfident(100, 3, 1.0, seed=0), groups=groups)


def test_groups_where_none_are_used_are_refused() -> None:
    logits, target = overconfident(300, 3, 1.0, seed=0)
    conformal = ConformalClassifier()
    with pytest.raises(ValueError, match="do not use groups"):
        conformal.fit(logits, target, groups=target)
    conformal.fit(logits, target)
    with pytest.raises(ValueError, match="do not use groups"):
        conformal.predict_set(logits, groups=target)
    by_group = ConformalClassifier(coverage="group-conditional").fit(logits, target, groups=[0] * 300)
    for sets, more in ((conformal, (target,)), (by_group, ())):
        with pytest.raises(ValueError, match="positions in groups_"):
            sets.module()(logits, *more)
    with pytest.raises(ValueError, match="pass groups="):
        by_group.predict_set(logits)
    with pytest.raises(TypeError, match="use quantiles_"):
        _ = by_group.quantile_
    with pytest.raises(TypeError, match="use quantile_"):
        _ = conformal.quantiles_


@pytest.mark.parametrize("labels", [[3, 1], ["north", "south"], [("a", 1), ("b", (2, "c"))], [0.5, True]])
def test_groups_come_back_from_a_file(labels: list[Any], tmp_path: Path) -> None:
    logits, target, groups = unequal(1000, seed=5)
    names = [labels[g] for g in groups.tolist()]
    conformal = ConformalClassifier("aps", coverage="group-conditional").fit(logits, target, groups=names)
    save(conformal, tmp_path / "sets.safetensors")
    other = load(tmp_path / "sets.safetensors")
    assert repr(other) == repr(conformal)
    assert other.quantiles_ == conformal.quantiles_
    assert torch.equal(other.predict_set(logits, groups=names), conformal.predict_set(logits, groups=names))


def test_a_fit_that_fails_leaves_the_sets_as_they_were() -> None:
    logits, target, groups = unequal(1000, seed=7)
    conformal = ConformalClassifier(coverage="group-conditional").fit(logits, target, groups=groups)
    before = conformal.quantiles_
    with pytest.raises(ValueError, match="5 to 9"):
        conformal.fit(logits, target + 5, groups=["x"] * 1000)
    assert conformal.quantiles_ == before
    assert conformal.fit(logits, target, groups=groups).quantiles_ == before


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.07, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.5, 0.7, 0.99])
def test_fewest_samples_are_those_of_a_finite_threshold(alpha: float) -> None:
    finite = [n for n in range(1, 200) if math.isfinite(conformal_quantile(np.arange(float(n)), alpha))]
    assert finite[0] == fewest_samples(alpha) == max(1, math.ceil(round(1 / alpha, 9)) - 1)


@pytest.mark.parametrize(("samples", "alpha"), [(9, 0.1), (50, 0.1), (100, 0.3), (1000, 0.05)])
def test_the_range_of_coverage_is_that_of_the_beta_distribution_and_of_simulations(samples: int, alpha: float) -> None:
    left = math.floor((samples + 1) * alpha + 1e-9)
    low, high = coverage_range(samples, alpha)
    assert (low, high) == pytest.approx(beta.ppf([0.05, 0.95], samples + 1 - left, left), rel=1e-9)
    scores = np.random.default_rng(0).random((4000, samples))
    covered = np.array([conformal_quantile(row, alpha) for row in scores])  # of uniform scores
    assert ((covered > low) & (covered < high)).mean() == pytest.approx(0.9, abs=0.02)


def test_five_samples_give_every_class_and_say_so() -> None:
    logits, target = overconfident(5, 3, 1.0, seed=0)
    conformal = ConformalClassifier()
    (text,) = notices(conformal, logits, target)
    assert "5 samples, no finite threshold; with fewer than 9" in text
    assert conformal.quantile_ == math.inf
    assert conformal.predict_set(logits).all()
    higher = ConformalClassifier(alpha=0.167)
    (text,) = notices(higher, logits, target)
    assert "no finite threshold" not in text.split(";")[0]
    assert higher.quantile_ < 1


def test_few_samples_give_the_range_of_the_coverage() -> None:
    (text,) = notices(ConformalClassifier(), *overconfident(50, 3, 1.0, seed=0))
    assert "50 samples, 82.6% to 96.0%" in text
    assert not notices(ConformalClassifier(), *overconfident(120, 3, 1.0, seed=0))
    assert np.subtract(*coverage_range(120, 0.1)[::-1]) < 0.1


def test_rare_classes_and_groups_are_named() -> None:
    logits, _, _ = unequal(330, seed=8)
    target = torch.tensor([0] * 150 + [1] * 150 + [2] * 26 + [3] * 4)
    conformal = ConformalClassifier(coverage="class-conditional")
    (text,) = notices(conformal, logits, target)
    assert "3: 4 samples, no finite threshold, 4: 0 samples, no finite threshold;" in text
    assert "2: 26 samples, 8" in text
    assert conformal.predict_set(logits)[:, 3:].all()
    groups = [f"g{min(place // 150, 1)}" for place in range(300)] + [f"h{place}" for place in range(30)]
    by_group = ConformalClassifier(coverage="group-conditional")
    (text,) = notices(by_group, logits, target, groups=groups)
    assert "'h0': 1 sample, no finite threshold, 'h1': 1 sample" in text
    assert "and 25 more" in text
    assert by_group.predict_set(logits, groups=groups)[300:].all()


def test_classes_without_samples_are_named_if_sets_are_marginal() -> None:
    logits, target = overconfident(200, 5, 1.0, seed=0)
    names = np.array(["ant", "bee", "cow", "dog", "eel"])
    (text,) = notices(ConformalClassifier(), logits, target.clamp_max(3))
    assert "no samples of 4," in text
    named = names[target.clamp_min(2)]
    (text,) = notices(ConformalClassifier("aps"), logits.numpy(), named, classes=names.tolist())
    assert "'ant', 'bee'," in text
    assert not notices(ConformalClassifier(), logits, target)
    (text,) = notices(ConformalClassifier(), logits[:5], target[:5].clamp_max(3))
    assert "all classes" in text
    sets = ConformalClassifier(coverage="class-conditional")
    assert "4: 0 samples" in notices(sets, logits, target.clamp_max(3))[0]
    assert sets.predict_set(logits)[:, 4].all()


def test_samples_for_tuning_are_not_counted() -> None:
    (text,) = notices(ConformalClassifier("raps", penalty="tune"), *overconfident(10, 3, 1.0, seed=0))
    assert "7 samples, no finite" in text
