"""Tests of calibration, intervals and comparisons: exact where they claim to be, and honest by simulation."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.frames import Array, Marks
from calibrant.metrics import binned, intervals, jackknife, proper, tests, unbinned
from calibrant.metrics.intervals import compare, confidence_interval
from calibrant.metrics.predictions import Predictions, predictions
from calibrant.metrics.registry import METRICS, find_metric
from calibrant.metrics.tests import calibration_test
from tests.metrics.reference import CONTINUOUS, CORRECT

Draw = Callable[[np.random.Generator, int], Array]


def spread(generator: np.random.Generator, n: int) -> Array:
    return 0.5 + 0.45 * np.sqrt(generator.random(n))


def saturated(generator: np.random.Generator, n: int) -> Array:
    """As trained networks are: many very sure, some at exactly 1, some tied, and a few at 0.99999."""
    z = (1 - 10 ** generator.uniform(-9, -0.3, n)).astype(np.float32)
    z[: n // 5] = np.round(z[: n // 5] * 20) / 20
    z[n // 5 : n // 3] = 0.99999
    return z


def sample(n: int, seed: int, shift: float = 0.0, draw: Draw = spread) -> Predictions:
    """Confidences, and correctness as probable as they say less ``shift``."""
    generator = np.random.default_rng((n, seed))
    z = draw(generator, n)
    return Predictions(z, generator.random(n) < z - shift)


Pair = tuple[Predictions, Predictions]


def pair(n: int, seed: int, a: float, b: float) -> Pair:
    """Two models on the same samples, over-confident by ``a`` and ``b``, that find mostly the same ones hard."""
    generator = np.random.default_rng((n, seed))
    za, zb, luck = spread(generator, n), spread(generator, n), generator.random(n)
    zb = np.where(generator.random(n) < 0.5, za, zb)
    return Predictions(za, luck < za - a), Predictions(zb, luck < zb - b)


def shifted(n: int, seed: int, a: float, b: float) -> Pair:
    """One model whose confidences are shifted by ``a`` and ``b`` from the truth: their errors move together."""
    generator = np.random.default_rng((n, seed))
    truth = generator.uniform(0.55, 0.9, n)
    right = generator.random(n) < truth
    return Predictions(truth + a, right), Predictions(truth + b, right)


def tempered(n: int, seed: int, a: float, b: float) -> Pair:
    """One network at two temperatures; at 1 it is calibrated."""
    generator = np.random.default_rng((n, seed))
    logits = 2 * generator.normal(size=(n, 5))
    p = np.exp(logits)
    shares = p.cumsum(1) / p.sum(1, keepdims=True)
    target = np.minimum((shares < generator.random((n, 1))).sum(1), 4)
    return predictions(logits=logits / a, target=target), predictions(logits=logits / b, target=target)


def unlike(n: int, seed: int, a: float, b: float) -> Pair:
    """Two calibrated models with confidences from ``1 - a`` and from ``1 - b`` up to 1."""
    generator = np.random.default_rng((n, seed))
    za, zb = 1 - a * generator.random(n), 1 - b * generator.random(n)
    return Predictions(za, generator.random(n) < za), Predictions(zb, generator.random(n) < zb)


DATA: dict[str, tuple[Array, Marks]] = {
    "continuous": (CONTINUOUS[:200], CORRECT[:200]),
    "tied": (np.round(50 * CONTINUOUS[:200]) / 50, CORRECT[:200]),
    "float32": (CONTINUOUS[:200].astype(np.float32), CORRECT[:200]),
    "zeros and ones": (np.repeat([0.0, 0.25, 0.5, 1.0], 50), CORRECT[:200]),
    "all tied": (np.full(9, 0.7), CORRECT[:9]),
}
CLOSED: tuple[str, ...] = ("esd", "mmce_unbiased", "gap")
BOOTSTRAPPED: tuple[str, ...] = ("ks_error", "ece")
ON_ROWS = CLOSED + BOOTSTRAPPED
PLAIN: dict[str, Callable[[Array, Marks], float]] = {
    "esd": unbinned.esd, "ks_error": unbinned.ks_error, "ece": binned.ece, "mmce_unbiased": unbinned.mmce_unbiased,
    "gap": proper.gap,
}  # fmt: skip


def test_golden_consistency_resampling() -> None:
    found = calibration_test(CONTINUOUS, CORRECT, draws=2000)
    assert found.statistic == pytest.approx(6.344652845941e-04, rel=1e-10)
    assert abs(found.null_mean) < 6e-6
    assert found.critical_value == pytest.approx(1.9e-4, rel=0.1)
    assert found.p_value == pytest.approx(0.0025, abs=0.0025)
    assert found.rejected


@pytest.mark.parametrize("metric", ON_ROWS)
@pytest.mark.parametrize("name", DATA)
def test_one_sort_serves_all_draws(name: str, metric: str) -> None:
    z, c = DATA[name]
    data = predictions(z, c)
    of_draws = find_metric(metric).of_draws
    assert of_draws is not None
    value = of_draws(data)
    assert value(tests.observed_ties(data.ties))[0] == pytest.approx(PLAIN[metric](z, c), abs=1e-14)
    sizes = data.ties.samples.astype(int)
    for block in tests.null_ties(data.ties, 20, seed=1):
        for drawn, found in zip(block.right.astype(int), value(block), strict=True):
            correct = np.concatenate([np.arange(n) < r for n, r in zip(sizes, drawn, strict=True)])
            expected = PLAIN[metric](np.sort(z), correct)
            assert found == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("name", DATA)
def test_bootstrapped_rows_equal_the_metric_of_the_drawn_samples(name: str) -> None:
    data = predictions(*DATA[name])
    ks, ece = (intervals._on_counts(data, METRICS[key]) for key in ("ks_error", "ece"))
    for counts in intervals._bootstrap_counts(data, 10, seed=2):
        assert (counts.sum(1) == len(data)).all()
        drawn = [data.repeated(row) for row in counts]
        np.testing.assert_allclose(ks(counts), [unbinned.ks_error(each) for each in drawn], atol=1e-14)
        np.testing.assert_allclose(ece(counts), [binned.ece(each) for each in drawn], atol=1e-14)


def test_draws_have_the_probability_of_the_confidence() -> None:
    z = np.array([0.0, 1e-5, 0.3, 0.99999, 1 - 1e-9, 1.0])
    data = predictions(np.concatenate((z, np.full(7, 0.9), np.full(5, 1 - 1e-4))), np.ones(18))
    draws = 400_000
    residual = sum(block.residual.sum(0) for block in tests.null_ties(data.ties, draws, seed=0))
    p, n = data.ties.confidence, data.ties.samples
    error = np.sqrt(draws * n * p * (1 - p))
    assert (np.abs(residual) <= 4 * error + 1e-3).all()
    assert residual[0] == residual[-1] == 0
    assert residual[1] != 0


def test_the_size_of_blocks_does_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for z, c in (DATA["tied"], DATA["continuous"]):
        results = []
        for cells in (1, 1000, 1 << 20):
            monkeypatch.setattr(tests, "CELLS", cells)
            test = calibration_test(z, c, draws=50, seed=3)
            results.append((test, confidence_interval(z, c, metric="ks_error", draws=50, seed=3)))
        assert results[0] == results[1] == results[2]
    assert calibration_test(z, c, draws=50, seed=4) != results[0][0]


def test_memory_is_bounded() -> None:
    data = sample(20_000, 0)
    assert len(data.ties.samples) == 20_000
    tracemalloc.start()
    calibration_test(data, draws=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6


def test_targets_are_drawn_from_the_class_probabilities() -> None:
    p = np.array([[0.6, 0.3, 0.1], [0.0, 0.2, 0.8]])
    data = predictions(probabilities=p, target=[0, 2])
    drawn = list(tests.null_predictions(data, 20_000, 0, of_classes=True))
    targets = np.stack([each.target for each in drawn if each.target is not None])
    shares = np.stack([(targets == k).mean(0) for k in range(3)], 1)
    np.testing.assert_allclose(shares, p, atol=0.015)
    assert shares[1, 0] == 0
    for each in drawn[:100]:
        assert each.target is not None
        assert (each.correct == (each.target == [0, 2])).all()


def test_p_value_counts_the_data_as_one_draw() -> None:
    values = iter([2.0, 1.0, 2.0, 3.0, 0.0])  # of the data, then of four draws
    found = calibration_test([0.5, 0.6], [1, 0], metric=lambda _: next(values), draws=4)
    assert (found.statistic, found.p_value) == (2.0, 3 / 5)
    assert found.null_mean == 1.5


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("metric", "draw"),
    [
        *((metric, spread) for metric in ("esd", "ks_error", "ece", "mmce_unbiased")),
        *((metric, saturated) for metric in ("ece", "esd", "ks_error")),
    ],
)
def test_size(metric: str, draw: Draw) -> None:
    found = [calibration_test(sample(300, s, draw=draw), metric=metric, draws=199, seed=s) for s in range(800)]
    assert 0.03 <= np.mean([each.rejected for each in found]) <= 0.07


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("metric", ["esd", "ks_error", "ece", "mmce_unbiased", "gap"])
def test_power_rises_with_miscalibration(metric: str) -> None:
    power = [
        np.mean([calibration_test(sample(400, seed, shift), metric=metric, draws=99).rejected for seed in range(100)])
        for shift in (0.0, 0.02, 0.05, 0.1)
    ]
    assert power == sorted(power)
    assert power[0] < 0.1
    assert power[2] > 0.2
    assert power[3] > 0.9


@given(st.lists(st.tuples(st.sampled_from((0.0, 0.2, 0.5, 0.51, 0.9, 1.0)), st.booleans()), min_size=4, max_size=12))
def test_leave_one_out_values_equal_brute_force(data: list[tuple[float, bool]]) -> None:
    z, c = np.array([pair[0] for pair in data]), np.array([pair[1] for pair in data])
    made = predictions(z, c)
    for closed, plain in (
        (jackknife.esd_jackknife, unbinned.esd),
        (jackknife.mmce_jackknife, unbinned.mmce_unbiased),
        (jackknife.gap_jackknife, proper.gap),
    ):
        found = closed(made)
        each = [plain(np.delete(z, m), np.delete(c, m)) for m in range(len(z))]
        np.testing.assert_allclose(found.without_each, each, atol=1e-13)
        assert found.value == pytest.approx(plain(z, c), abs=1e-14)


def test_biased_values_are_the_published_v_statistics() -> None:
    data = predictions(CONTINUOUS, CORRECT)
    assert jackknife.mmce_jackknife(data).biased == pytest.approx(1.751840776154e-03, rel=1e-10)
    assert jackknife.esd_jackknife(data).biased == pytest.approx(6.924938038938e-04, rel=1e-10)


def coverage(metric: str, truth: float, shift: float, n: int, times: int, draws: int = 1) -> float:
    found = [confidence_interval(sample(n, s, shift), metric=metric, draws=draws, seed=s) for s in range(times)]
    return float(np.mean([each.low <= truth <= each.high for each in found]))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shift", [0.05, 0.1])
@pytest.mark.parametrize("metric", ["esd", "gap", "ks_error", "ece"])
def test_intervals_cover(metric: str, shift: float) -> None:
    # The cumulated residual at the u-quantile is the shift times u, whose square has mean shift^2 / 3.
    truth, times = (shift**2 / 3, 1000) if metric == "esd" else (shift, 1000 if metric == "gap" else 250)
    assert 0.91 <= coverage(metric, truth, shift, n=1000, times=times, draws=150) <= 0.99


@pytest.mark.slow
@pytest.mark.slow_after(2)
@pytest.mark.parametrize("metric", ["ece", "esd", "mmce_unbiased", "ks_error"])
def test_intervals_cover_at_perfect_calibration(metric: str) -> None:
    assert coverage(metric, 0.0, 0.0, n=500, times=300, draws=200) >= 0.94


def test_interval_has_the_level_asked_for() -> None:
    half, wide = (confidence_interval(CONTINUOUS, CORRECT, metric="gap", level=level) for level in (0.5, 0.99))
    assert (wide.high - wide.low) / (half.high - half.low) == pytest.approx(2.575829 / 0.674490, rel=1e-5)
    se = (CONTINUOUS - CORRECT).std(ddof=1) / np.sqrt(1000)
    assert wide.high == pytest.approx((CONTINUOUS - CORRECT).mean() + 2.575829 * se, rel=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("metric", "low", "high"),
    [("esd", 0.025, 0.075), ("mmce_unbiased", 0.025, 0.075), ("gap", 0.025, 0.075), ("ks_error", 0.015, 0.075)],
)
def test_size_of_the_comparison(metric: str, low: float, high: float) -> None:
    found = [compare(*pair(500, seed, 0.1, 0.1), metric=metric, draws=100, seed=seed) for seed in range(600)]
    assert low <= np.mean([each.better is not None for each in found]) <= high


# Equally wrong, or both calibrated: what is found better is found so by chance.
NO_DIFFERENCE: dict[str, tuple[Callable[[int, int, float, float], Pair], int, float, float]] = {
    "calibrated": (pair, 500, 0.0, 0.0),
    "shift 0.005, 200": (shifted, 200, 0.005, -0.005),
    "shift 0.01, 500": (shifted, 500, 0.01, -0.01),
    "shift 0.05, 500": (shifted, 500, 0.05, -0.05),
    "two temperatures": (tempered, 500, 0.97, 1.03),
    "over and under": (pair, 500, 0.05, -0.05),
    "one far more confident": (unlike, 500, 0.5, 0.02),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NO_DIFFERENCE)
def test_no_difference_is_found_where_there_is_none(name: str) -> None:
    draw, n, a, b = NO_DIFFERENCE[name]
    pairs = [draw(n, seed, a, b) for seed in range(500)]
    for metric in CLOSED:
        assert np.mean([compare(*each, metric=metric).better is not None for each in pairs]) <= 0.075, metric
    for metric in BOOTSTRAPPED:
        found = [compare(*each, metric=metric, draws=80, seed=seed) for seed, each in enumerate(pairs[:200])]
        assert np.mean([each.better is not None for each in found]) <= 0.085, metric


def covered(metric: str, truth: float, pairs: list[Pair]) -> float:
    found = [compare(*each, metric=metric) for each in pairs]
    return float(np.mean([each.low <= truth <= each.high for each in found]))


@pytest.mark.slow
def test_interval_of_the_difference_covers() -> None:
    pairs = [pair(1000, seed, 0.02, 0.1) for seed in range(600)]
    assert 0.92 <= covered("esd", (0.02**2 - 0.1**2) / 3, pairs) <= 0.98
    assert 0.92 <= covered("gap", 0.02 - 0.1, pairs) <= 0.98


@pytest.mark.parametrize(("a", "b"), [(0.05, -0.05), (0.0, 0.05), (-0.1, 0.05)])
def test_interval_of_the_difference_of_sizes_covers(a: float, b: float) -> None:
    # Where one of the two is 0, each of its ends may err: 7.5 % in the worst case.
    assert covered("gap", abs(a) - abs(b), [shifted(500, seed, a, b) for seed in range(600)]) >= 0.92


def test_difference_of_sizes_equals_a_search_over_all_differences_and_sums() -> None:
    for seed in range(40):
        generator = np.random.default_rng(seed)
        a, b = generator.normal(0, 0.1, (2, 30)) + generator.normal(0, 0.03, (2, 1))
        made = [jackknife.Jackknife(each.mean(), (each.sum() - each) / 29, np.ones(30), 0.0) for each in (a, b)]
        found = jackknife.difference_of_sizes(made[0], made[1], 0.9)
        ends = [(x.mean(), 1.644854 * x.std(ddof=1) / np.sqrt(30)) for x in (a - b, a + b)]
        d, s = np.meshgrid(*(np.linspace(centre - reach, centre + reach, 401) for centre, reach in ends))
        sizes = np.abs(s + d) / 2 - np.abs(s - d) / 2
        assert (found.low, found.high) == pytest.approx((sizes.min(), sizes.max()), abs=1e-3)
        assert (found.p_value <= 0.1) == (found.low > 0 or found.high < 0)


@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased", "gap", "ks_error", "ece", "brier", "accuracy"])
def test_comparison_is_antisymmetric_and_agrees_with_its_interval(metric: str) -> None:
    for seed in range(15):
        a, b = pair(300, seed, 0.0, 0.02 * (seed % 5))
        there, back = compare(a, b, metric=metric, draws=60), compare(b, a, metric=metric, draws=60)
        assert (there.a, there.b) == (back.b, back.a)
        assert there.difference == -back.difference == there.a - there.b
        assert (there.low, there.high) == pytest.approx((-back.high, -back.low), rel=1e-4, abs=1e-9)
        assert there.p_value == pytest.approx(back.p_value, abs=1e-9)
        assert there.low <= there.difference <= there.high
        assert (there.p_value <= 0.05) == (there.low > 0 or there.high < 0)


@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased", "gap", "ks_error", "ece", "log_loss"])
def test_a_model_does_not_differ_from_itself(metric: str) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 3))
    model = predictions(logits=logits, target=np.arange(50) % 3)
    found = compare(model, model, metric=metric, draws=20)
    assert (found.difference, found.p_value, found.better) == (0, 1, None)
    assert (found.low, found.high) == pytest.approx((0, 0), abs=1e-12)
    assert "the data cannot tell" in str(found)


@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased", "gap", "ks_error", "ece"])
def test_data_without_any_error(metric: str) -> None:
    perfect, other = predictions(np.ones(20), np.ones(20)), sample(20, 0)
    test = calibration_test(perfect, metric=metric, draws=20)
    assert (test.statistic, test.p_value) == (0, 1)
    found = confidence_interval(perfect, metric=metric, draws=20)
    assert (found.value, found.low, found.high) == (0, 0, 0)
    assert np.isfinite(compare(perfect, other, metric=metric, draws=20).p_value)


@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased"])
def test_the_least_spread_is_that_of_calibrated_models(metric: str) -> None:
    made = find_metric(metric)
    for z in (spread(np.random.default_rng(0), 300), np.round(spread(np.random.default_rng(0), 300), 1)):
        data = predictions(z, np.arange(300) % 2)
        assert made.of_draws is not None
        assert made.jackknife is not None
        values = [made.of_draws(data)(block) for block in tests.null_ties(data.ties, 4000, seed=0)]
        assert made.jackknife(data).least_spread == pytest.approx(np.concatenate(values).std(), rel=0.1)


@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased", "gap", "accuracy"])
def test_samples_that_are_all_alike_do_not_make_an_interval_a_point(metric: str) -> None:
    level = confidence_interval(np.full(1000, 0.5), np.arange(1000) % 2, metric=metric)
    assert level.low <= max(level.value, 0) < level.high < level.value + 0.04
    sure = confidence_interval(np.full(1000, 0.99), np.ones(1000), metric=metric)
    assert sure.high - sure.low > abs(sure.value) * (0.5 if metric != "accuracy" else 0.003)
    few = confidence_interval([0.9, 0.1, 0.9, 0.9, 0.1], [0, 0, 0, 0, 1], metric=metric)
    low, high = find_metric(metric).span
    assert low <= few.low < few.high <= high


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_by_name(metric: str) -> None:
    logits = 2 * np.random.default_rng(1).normal(size=(60, 4))
    data = predictions(logits=logits, target=np.arange(60) % 4)
    test = calibration_test(data, metric=metric, draws=9)
    assert test.metric == metric
    # Predictions of noise are as bad as it gets; what correctness has no part in is as it is under calibration.
    assert test.p_value == (1 if metric == "mean_confidence" else 0.1 if METRICS[metric].kind != "mixed" else 0.2)
    found = confidence_interval(data, metric=metric, draws=9)
    assert found.low <= found.high
    assert str(found)
    function = getattr(metrics, metric)
    assert test == calibration_test(logits=logits, target=np.arange(60) % 4, metric=function, draws=9)
    assert found == confidence_interval(data, metric=function, draws=9)
    other = predictions(logits=logits / 2, target=np.arange(60) % 4)
    assert compare(data, other, metric=metric, draws=9) == compare(data, other, metric=function, draws=9)


def test_the_gap_counts_in_both_directions_and_keeps_its_sign_in_the_interval() -> None:
    under, over = sample(1000, 0, shift=-0.05), sample(1000, 0, shift=0.15)
    test = calibration_test(under, metric="gap", draws=99)
    assert test.rejected
    assert test.statistic == pytest.approx(proper.gap(under))
    assert str(test).startswith("gap -")
    assert 0 < test.null_mean < test.critical_value < -test.statistic
    assert confidence_interval(under, metric="gap").high < 0
    assert compare(under, over, metric="gap").better == "a"
    assert compare(under, over, metric="gap").a > 0


@pytest.mark.parametrize("metric", ["log_loss", "brier", "accuracy"])
def test_what_is_better_than_promised_is_not_calibrated(metric: str) -> None:
    _, timid = tempered(1000, 0, 1.0, 2.0)
    honest, _ = tempered(1000, 0, 1.0, 2.0)
    assert calibration_test(timid, metric=metric, draws=99).p_value == 0.02
    assert calibration_test(honest, metric=metric, draws=99).p_value > 0.1


def test_accuracy_is_better_when_larger() -> None:
    generator = np.random.default_rng(0)
    a, b = (Predictions(np.full(500, 0.8), generator.random(500) < share) for share in (0.9, 0.7))
    assert ": a is better, p < 0.001" in str(compare(a, b, metric="accuracy"))
    assert compare(b, a, metric="accuracy").better == "b"
    assert compare(b, a, metric="aurc", draws=100).better == "b"


def test_a_function_of_your_own() -> None:
    def worst(given: Predictions) -> float:
        return float(np.abs(given.correct - given.confidence).max())

    found = calibration_test(CONTINUOUS, CORRECT, metric=worst, draws=30)
    assert found.metric == "worst"
    assert str(confidence_interval(CONTINUOUS, CORRECT, metric=worst, draws=30)).startswith("worst 0.")


def failing(call: int) -> Callable[[Predictions], float]:
    """A metric that is not a number when it is called for the ``call``-th time."""
    calls = iter(range(1, 1000))
    return lambda _: np.nan if next(calls) == call else 1.0


A, B = predictions([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0]), predictions([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1])
LABELLED = [predictions(probabilities=np.full(5, 0.7), target=target) for target in ([0, 1, 1, 0, 1], [0, 0, 1, 0, 1])]


ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: calibration_test(A, draws=0), "draws"),
    (lambda: calibration_test(A, seed=-1), "seed"),
    (lambda: calibration_test(A, metric="ace"), "metric .*'esd'"),
    (lambda: calibration_test(A, metric=lambda _: np.nan), "finite .*nan"),
    (lambda: calibration_test(A, metric=failing(3), draws=9), "1 of 9"),
    (lambda: confidence_interval(A, metric=lambda _: np.inf), "finite .*inf"),
    (lambda: confidence_interval(A, metric=failing(3), draws=9), "1 of 9"),
    (lambda: compare(A, A, metric=failing(4), draws=9), "1 of 9"),
    (lambda: calibration_test(A, metric=3), "metric"),  # type: ignore[arg-type]
    (lambda: calibration_test([0.9, 0.8], [1, 0]), "ESD .*3 samples, got 2"),
    (lambda: calibration_test(A, metric="log_loss"), "log loss"),
    (lambda: confidence_interval(A, level=1.0), "level"),
    (lambda: confidence_interval([0.9, 0.8, 0.7], [1, 0, 1]), "interval of ESD .*4 samples"),
    (lambda: confidence_interval([0.9], [1], metric="ece"), "interval of ECE .*2 samples"),
    (lambda: compare(A, B), "got 5 and 4"),
    (lambda: compare(A, [0.5]), "Predictions, got list"),  # type: ignore[arg-type]
    (lambda: compare(*LABELLED), "target, got 1 of 5"),
    (lambda: compare(A, predictions(A.confidence, A.correct, sample_weight=np.ones(5) + 1)), "sample_weight"),
    (lambda: compare(*2 * [predictions([0.9] * 3, [1] * 3)]), "comparison of ESD .*4 samples"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors_name_what_is_wrong(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
