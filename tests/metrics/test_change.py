"""Change of calibration: detected where it is, at the stated level where it is not."""

import math

import numpy as np
import pytest

from calibrant import metrics
from calibrant.metrics import Predictions


def risks(samples: int, seed: int, *, shift: float = 0.0, slope: float = 1.0, low: float = 0.1) -> Predictions:
    rng = np.random.default_rng(seed)
    p = rng.uniform(low, 0.9, samples)
    odds = slope * np.log(p / (1 - p))
    return metrics.predictions(p, rng.random(samples) < np.clip(1 / (1 + np.exp(-odds)) + shift, 0, 1))


def test_a_shift_is_a_change_for_the_worse() -> None:
    found = metrics.calibration_change(risks(3000, 0), risks(3000, 1, shift=0.06))
    assert found.changed
    assert found.worse
    assert found.low < -0.06 < found.high
    assert "calibration has changed (p < 0.001) and is worse" in str(found)


def test_a_slope_that_leaves_the_average_is_a_change() -> None:
    found = metrics.calibration_change(risks(5000, 0), risks(5000, 1, slope=0.5))
    assert abs(found.difference) < 0.03
    assert found.changed


def test_a_change_for_the_better_is_not_worse() -> None:
    found = metrics.calibration_change(risks(3000, 0, shift=0.06), risks(3000, 1))
    assert found.changed
    assert not found.worse
    assert "but is not clearly worse" in str(found)


def test_other_risks_with_the_same_errors_are_no_change() -> None:
    found = metrics.calibration_change(risks(3000, 0, slope=0.6), risks(3000, 1, slope=0.6, low=0.5))
    assert found.p_value > 0.01


def test_a_set_without_a_line_is_compared_by_its_gap() -> None:
    right = metrics.predictions(np.linspace(0.9, 1, 50), np.ones(50))
    assert metrics.calibration_change(right, right).p_value == 1.0
    with pytest.raises(ValueError, match="got 20"):
        metrics.calibration_change(right, metrics.predictions(np.full(20, 0.5), np.ones(20)))


@pytest.mark.slow
def test_unchanged_calibration_is_called_changed_in_5_percent() -> None:
    changed = sum(metrics.calibration_change(risks(400, k), risks(300, k + 1000)).changed for k in range(600))
    assert 600 * 0.05 - 3 * math.sqrt(600 * 0.0475) <= changed <= 600 * 0.05 + 3 * math.sqrt(600 * 0.0475)


def test_windows_hold_all_samples_in_order_of_time() -> None:
    data, time = risks(1000, 0), np.random.default_rng(1).permutation(1000) // 7
    found = metrics.calibration_over_time(data, time=time, windows=5)
    assert sum(window.samples for window in found.windows) == 1000
    assert [window.start for window in found.windows] == sorted((w.start for w in found.windows), key=float)
    assert all(float(a.end) < float(b.start) for a, b in zip(found.windows, found.windows[1:], strict=False))
    rows = (time >= float(found.windows[1].start)) & (time <= float(found.windows[1].end))
    assert found.windows[1].accuracy == pytest.approx(data.correct[rows].mean())


def test_a_change_is_found_where_it_is() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, 4000)
    event = rng.random(4000) < p + np.where(np.arange(4000) < 3000, 0, 0.1)
    found = metrics.calibration_over_time(p, event, time=np.arange(4000))
    assert found.changed
    assert 2700 < float(found.change_at) < 3300


def test_texts_are_read_as_dates() -> None:
    data = risks(60, 0)
    found = metrics.calibration_over_time(data, time=["2026-01-01"] * 30 + ["2026-02-01T10:00"] * 30, windows=2)
    assert [window.start[:10] for window in found.windows] == ["2026-01-01", "2026-02-01"]
    with pytest.raises(ValueError, match="monday"):
        metrics.calibration_over_time(data, time=["monday"] * 60)
    with pytest.raises(ValueError, match="1 of 60"):
        metrics.calibration_over_time(data, time=[float("nan"), *range(59)])


@pytest.mark.slow
def test_a_constant_gap_is_rejected_in_5_percent() -> None:
    rejected = sum(
        metrics.calibration_over_time(risks(500, k, shift=0.05), time=range(500)).changed for k in range(600)
    )
    assert rejected <= 600 * 0.05 + 3 * math.sqrt(600 * 0.0475)
    assert rejected >= 5


def test_times_have_the_digits_that_windows_need() -> None:
    given = np.full(600, 0.5), np.arange(600) % 2
    start = np.datetime64("2024-06-29T10:34:46.831529507")
    steps = {"D": np.timedelta64(1, "D"), "m": np.timedelta64(30, "s"), "s": np.timedelta64(200, "ms")}
    for unit, step in steps.items():
        found = metrics.calibration_over_time(*given, time=start + np.arange(600) * step)
        assert found.windows[0].start == str(start.astype(f"M8[{unit}]"))
    seconds = 1_719_657_286 + np.arange(600) * 3600
    assert metrics.calibration_over_time(*given, time=seconds).windows[0].start == "1719657286"
