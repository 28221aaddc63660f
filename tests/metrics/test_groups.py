"""Calibration of groups: each group as alone, corrected for their number, and the largest error of any."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.metrics.groups import group_members, multicalibration_error

RNG = np.random.default_rng(0)
RISK = RNG.uniform(0.05, 0.95, 6000)
SEX, AGE = RNG.choice(["f", "m"], 6000), RNG.integers(0, 3, 6000)
WRONG = (SEX == "f") & (AGE == 2)
EVENT = RNG.random(6000) < np.where(WRONG, 0.7 * RISK, RISK)


def test_the_worst_group_comes_first_and_others_are_not_rejected() -> None:
    found = metrics.calibration_by_group(RISK, EVENT, groups={"sex": SEX, "age": AGE})
    assert found.groups[0].name == "sex = f, age = 2"
    assert found.groups[0].rejected
    clean = {"sex = m", "age = 0", "age = 1", *(f"sex = {s}, age = {a}" for s, a in product("fm", range(3)))}
    assert {group.name for group in found.rejected} <= {"sex = f, age = 2", "sex = f", "age = 2"}
    assert {group.name for group in found.groups} == clean | {"sex = f", "age = 2"}
    assert found.groups[0].gap.low > 0.1


def test_a_group_scores_as_it_does_alone() -> None:
    found = {group.name: group for group in metrics.calibration_by_group(RISK, EVENT, groups=SEX).groups}
    women = SEX == "f"
    assert found["f"].samples == women.sum()
    assert found["f"].ece == pytest.approx(metrics.ece(RISK[women], EVENT[women]))
    assert found["f"].gap == metrics.confidence_interval(RISK[women], EVENT[women], metric="gap")
    assert found["f"].accuracy == pytest.approx(EVENT[women].mean())


def test_p_values_are_corrected_for_the_number_of_groups() -> None:
    found = metrics.calibration_by_group(RISK, EVENT, groups=AGE)
    assert all(group.p_value >= group.test.p_value for group in found.groups)


@pytest.mark.slow
def test_calibrated_groups_are_rejected_in_at_most_5_percent_of_data_sets() -> None:
    rejected = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        p = rng.uniform(size=600)
        found = metrics.calibration_by_group(p, rng.random(600) < p, groups=rng.integers(0, 6, 600), draws=200)
        rejected += bool(found.rejected)
    assert rejected <= 400 * 0.05 + 3 * np.sqrt(400 * 0.05 * 0.95)


def test_small_groups_are_listed_not_judged() -> None:
    groups = np.array(["large"] * 5980 + ["tiny"] * 20)
    found = metrics.calibration_by_group(RISK, EVENT, groups=groups)
    assert [group.name for group in found.groups] == ["large"]
    assert found.too_small == {"tiny": 20}
    with pytest.raises(ValueError, match="of 300 groups"):
        metrics.calibration_by_group(RISK[:300], EVENT[:300], groups=np.arange(300))


def test_missing_labels_are_a_group_of_their_own() -> None:
    rows = group_members(np.array(["a", None, float("nan"), "a"], dtype=object), 4)
    assert {name: each.tolist() for name, each in rows.items()} == {"a": [0, 3], "missing": [1, 2]}


def test_labels_must_match_the_samples() -> None:
    with pytest.raises(ValueError, match=r"'sex' .*6000 samples"):
        metrics.calibration_by_group(RISK, EVENT, groups={"sex": SEX[:10]})
    with pytest.raises(ValueError, match="column"):
        metrics.calibration_by_group(RISK, EVENT, groups={})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans(), st.integers(0, 2), st.integers(1, 3)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_multicalibration_error_is_the_largest_of_all_groups_and_ranges(
    rows: list[tuple[float, bool, int, int]],
) -> None:
    z, c, g, w = (np.array(each, dtype=float) for each in zip(*rows, strict=True))
    levels = sorted({-1.0, *z.tolist()})
    largest = 0.0
    for group, low, high in product(set(g), levels, levels):
        chosen = (g == group) & (z > low) & (z <= high)
        largest = max(largest, abs(float((w * (c - z))[chosen].sum())) / w.sum())
    data = metrics.predictions(z, c, sample_weight=w)
    found = multicalibration_error(data, group_members(g, len(z)).values())
    assert found == pytest.approx(largest, abs=1e-12)
