"""Coverage and size of sets are what loops over the samples give."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import metrics

SETS = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=bool)
TARGET = np.array([3, 0, 2, 0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_values_are_those_of_loops(data: st.DataObject) -> None:
    samples, classes = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 12))
    cells = st.lists(st.booleans(), min_size=classes, max_size=classes)
    sets = data.draw(st.lists(cells, min_size=samples, max_size=samples))
    target = data.draw(st.lists(st.integers(0, classes - 1), min_size=samples, max_size=samples))
    groups = data.draw(st.lists(st.sampled_from(["a", 1, (2, "b")]), min_size=samples, max_size=samples))
    bounds = sorted(data.draw(st.sets(st.integers(0, 15), max_size=4)))
    hits = [row[y] for row, y in zip(sets, target, strict=True)]
    sizes = [sum(row) for row in sets]
    assert metrics.coverage(sets, target) == pytest.approx(sum(hits) / samples)
    assert metrics.mean_set_size(sets) == pytest.approx(sum(sizes) / samples)
    by_group = metrics.group_coverage(sets, target, groups)
    assert set(by_group) == set(groups)
    for label, value in by_group.items():
        mine = [hit for hit, other in zip(hits, groups, strict=True) if other == label]
        assert value == pytest.approx(sum(mine) / len(mine))
    strata = []
    for low, high in pairwise((-1, *bounds, classes)):
        mine = [hit for hit, size in zip(hits, sizes, strict=True) if low < size <= high]
        strata += [sum(mine) / len(mine)] if mine else []
    assert metrics.size_stratified_coverage(sets, target, bounds=bounds) == pytest.approx(min(strata))


@pytest.mark.parametrize("convert", [
    np.asarray, torch.as_tensor, lambda value: np.asarray(value, np.float32), lambda value: torch.as_tensor(value) * 1,
    lambda value: np.asarray(value).tolist(),
])  # fmt: skip
def test_any_container_and_type(convert: Any) -> None:
    sets, target = convert(SETS), convert(TARGET)
    assert metrics.coverage(sets, target) == 0.5
    assert metrics.mean_set_size(sets) == 7 / 4
    assert metrics.group_coverage(sets, target, convert([0, 1, 1, 0])) == {0: 0.5, 1: 0.5}
    assert metrics.size_stratified_coverage(sets, target) == 0.0


def test_strata_of_few_samples_can_be_left_out() -> None:
    assert metrics.size_stratified_coverage(SETS, TARGET, at_least=2) == 0.0
    with pytest.raises(ValueError, match="at_least"):
        metrics.size_stratified_coverage(SETS, TARGET, at_least=3)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: metrics.coverage(SETS * 0.5, TARGET), "only 0 and 1"),
    (lambda: metrics.coverage(SETS[0], TARGET), r"\(N, C\) .*got \(4,\)"),
    (lambda: metrics.mean_set_size(SETS[:0]), r"got \(0, 4\)"),
    (lambda: metrics.coverage(SETS, TARGET[:3]), r"target .*got \(3,\)"),
    (lambda: metrics.coverage(SETS, TARGET + 1), r"0\.\.3 .*from 1 to 4"),
    (lambda: metrics.group_coverage(SETS, TARGET, [1]), "4 sets, got 1"),
    (lambda: metrics.size_stratified_coverage(SETS, TARGET, bounds=(3, 3)), "ascending"),
])  # fmt: skip
def test_bad_input_is_explained(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_mapie_agrees() -> None:
    theirs = pytest.importorskip("mapie.metrics.classification")
    rng = np.random.default_rng(0)
    sets, target = rng.random((500, 6)) < 0.5, rng.integers(0, 6, 500)
    stacked = sets[:, :, None]
    assert metrics.coverage(sets, target) == pytest.approx(theirs.classification_coverage_score(target, stacked)[0])
    assert metrics.mean_set_size(sets) == pytest.approx(theirs.classification_mean_width_score(stacked)[0])
