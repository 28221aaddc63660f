"""Every metric against its definition and against golden numbers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant as cal
from calibrant import metrics
from calibrant.metrics import binned
from calibrant.metrics.ties import BLOCK
from tests.metrics import reference
from tests.metrics.reference import CONTINUOUS, CORRECT, TIED

Z, T, C = CONTINUOUS, TIED, CORRECT

GOLDEN: dict[str, tuple[Callable[..., float], float, float, float]] = {
    # name: function, value on the continuous set, on the tied one, relative tolerance
    "esd": (metrics.esd, 6.344652845941e-04, 6.870861370388e-04, 1e-10),
    "ks": (metrics.ks_error, 4.218693421584e-02, 4.170e-02, 1e-10),
    "mmce": (metrics.mmce_unbiased, 1.677203103337e-03, 1.653662884735e-03, 1e-10),
    "ece guo": (lambda z, c: metrics.ece(z, c, convention="guo"), 6.143280037420e-02, 6.126e-02, 1e-10),
    "ece paper": (metrics.ece, 6.257116286720e-02, 5.990e-02, 1e-10),
    "mce": (lambda z, c: metrics.mce(z, c, convention="guo"), 3.760623270772e-01, 3.8e-01, 1e-10),
    "sweep": (lambda z, c: metrics.ece_sweep(z, c), 3.988351602848e-02, 3.970e-02, 1e-10),
    # relplot's values, on a coarser grid that rounds tied confidences: see test_smooth_ece_solves_its_equation.
    "smooth": (lambda z, c: metrics.smooth_ece(z, c), 5.72323e-02, 5.90754e-02, 4e-2),
    "brier": (metrics.brier, 7.631487592034e-02, 7.64908e-02, 1e-10),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_value(name: str) -> None:
    function, continuous, tied, tolerance = GOLDEN[name]
    assert function(Z, C) == pytest.approx(continuous, rel=tolerance)
    assert function(T, C) == pytest.approx(tied, rel=tolerance)


def test_golden_values_of_bins_of_equal_mass() -> None:
    assert metrics.equal_mass_ece(Z, C) == pytest.approx(6.457707809452e-02, rel=1e-10)
    assert metrics.debiased_l2(Z, C, squared=True) == pytest.approx(4.334332248667e-03, rel=1e-10)
    for z in (Z, T):
        assert len(binned.swept_bins(metrics.predictions(z, C)).samples) == 3


def test_the_sweep_ends_where_accuracy_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binned, "MOST_SWEPT", 300)  # 4,096 tables take seconds
    z = np.linspace(0.5, 1, 100_000)
    assert metrics.ece_sweep(z, np.ones(len(z))) == pytest.approx(0.25, abs=1e-9)
    assert len(binned.swept_bins(metrics.predictions(z, z > 0.7)).samples) == 300
    ties = metrics.predictions(np.round(z[::1000], 1), np.ones(100))
    assert len(binned.swept_bins(ties).samples) == 6  # one for each tie group


# Coarse confidences make ties and hit bin edges; 0 and 1 are the ends of the range.
confidences = st.one_of(
    st.floats(0, 1, width=32),
    st.sampled_from([0.0, 1e-30, 0.05, 0.5, 0.55, 0.95, 1.0]),
    st.integers(0, 20).map(lambda k: k / 20),
)
samples = st.lists(st.tuples(confidences, st.integers(0, 1)), min_size=3, max_size=24)


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(samples, st.sampled_from([np.float32, np.float64]))
def test_metrics_equal_their_definitions(pairs: list[tuple[float, int]], kind: type) -> None:
    z, c = (np.array(column) for column in zip(*pairs, strict=True))
    z = z.astype(kind)
    zs, cs, n = z.tolist(), c.tolist(), len(z)
    assert metrics.esd(z, c) == close(reference.esd(zs, cs))
    assert metrics.ks_error(z, c) == close(reference.ks(zs, cs))
    for bandwidth in (0.4, 1e-3):
        assert metrics.mmce_unbiased(z, c, bandwidth) == close(reference.mmce(zs, cs, bandwidth, True))
    for bins in (1, 7, 20):
        rows = reference.binned(zs, cs, reference.right_closed(bins, kind), bins)
        assert metrics.ece(z, c, bins) == close(reference.ece(rows, n))
        of_tensors = cal.functional.ece(torch.from_numpy(z), torch.from_numpy(c), bins).item()
        assert of_tensors == pytest.approx(reference.ece(rows, n), rel=1e-6, abs=1e-12)
        assert metrics.ece(z, c, bins, norm=2) == close(reference.ece(rows, n, 2))
        worst = max((abs(right - total) / k for k, total, right in rows if k), default=0)
        assert metrics.mce(z, c, bins) == close(worst)
        mass = reference.equal_mass_rows(zs, cs, bins)
        assert metrics.equal_mass_ece(z, c, bins) == close(reference.ece(mass, n))
        debiased = sum(
            k / n * ((right / k - total / k) ** 2 - right / k * (1 - right / k) / (k - 1))
            for k, total, right in mass if k > 1
        )  # fmt: skip
        assert metrics.debiased_l2(z, c, bins, squared=True) == close(debiased)
    assert metrics.brier(z, c) == close(np.mean((c - z.astype(float)) ** 2))
    assert metrics.gap(z, c) == close(np.mean(z.astype(float)) - np.mean(c))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.7, 0.9]), st.integers(0, 1)), min_size=1, max_size=7))
def test_aurc_is_the_mean_over_orders_of_tied_samples(pairs: list[tuple[float, int]]) -> None:
    z, c = zip(*pairs, strict=True)
    assert metrics.aurc(z, c) == pytest.approx(reference.aurc(z, c), rel=1e-12, abs=1e-15)


@settings(max_examples=100, deadline=None)
@given(samples)
def test_the_parts_of_the_brier_score_add_up(pairs: list[tuple[float, int]]) -> None:
    z, c = zip(*pairs, strict=True)
    parts = metrics.decomposition(z, c, score="brier")
    assert parts.loss == close(np.mean((np.array(c) - z) ** 2))
    assert parts.calibration - parts.discrimination + parts.uncertainty == close(parts.loss)
    assert parts.calibration >= 0
    assert parts.discrimination >= -1e-12


def test_large_input_that_spans_many_blocks() -> None:
    # Tie groups across block ends, and one far longer than a block.
    rng = np.random.default_rng(0)
    z = np.concatenate((rng.integers(1, 5000, 3 * BLOCK) / 5000, np.full(2 * BLOCK, 0.5), rng.random(1000)))
    for kind in (np.float32, np.float64):
        confidence = z.astype(kind)
        correct = rng.random(len(z)) < z**2
        exact = cal.functional.esd(torch.from_numpy(confidence.astype(np.float64)), torch.from_numpy(correct)).item()
        assert metrics.esd(confidence, correct) == pytest.approx(exact, rel=1e-10)
        order = np.argsort(confidence, kind="stable")
        running: Any = np.cumsum(correct[order] - confidence[order].astype(np.float64))
        ends = np.append(confidence[order][1:] != confidence[order][:-1], True)
        assert metrics.ks_error(confidence, correct) == pytest.approx(np.abs(running[ends]).max() / len(z), rel=1e-9)


def test_smooth_ece_solves_its_equation() -> None:
    for z, c in ((Z, C), (T, C), (np.array([0.9, 0.2, 1.0]), np.array([0, 1, 0]))):
        value = metrics.smooth_ece(z, c)
        assert value == pytest.approx(reference.smoothed_error(z.tolist(), c.tolist(), value), abs=2e-5)


def test_smooth_ece_of_a_flawless_model() -> None:
    assert metrics.smooth_ece(np.ones(10), np.ones(10)) == 0


@pytest.mark.parametrize("bandwidth", [0.3, 1.0])
def test_skce_equals_its_definition_and_twice_mmce(bandwidth: float) -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(4), size=30)
    y = rng.integers(4, size=30)
    value = metrics.skce(probabilities=p, target=y, bandwidth=bandwidth)
    assert value == pytest.approx(reference.skce(p.tolist(), y.tolist(), bandwidth), rel=1e-10)
    binary = np.stack((Z[:50], 1 - Z[:50]), 1)  # class 0 is the predicted one
    twice = 2 * metrics.mmce_unbiased(Z[:50], C[:50], bandwidth / math.sqrt(2))
    assert metrics.skce(probabilities=binary, target=1 - C[:50].astype(int), bandwidth=bandwidth) == pytest.approx(
        twice
    )


def test_class_wise_ece_and_nll_and_brier_of_classes() -> None:
    rng = np.random.default_rng(3)
    logits = 3 * rng.standard_normal((200, 5))
    y = rng.integers(5, size=200)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert metrics.log_loss(logits=logits, target=y) == pytest.approx(-np.log(p[np.arange(200), y]).mean(), rel=1e-12)
    assert metrics.brier(logits=logits, target=y) == pytest.approx(((p - np.eye(5)[y]) ** 2).sum(1).mean(), rel=1e-12)
    assert dict(metrics.evaluate(probabilities=p, target=y)) == pytest.approx(
        dict(metrics.evaluate(logits=logits, target=y)), rel=1e-9
    )


def test_a_class_that_is_ruled_out_counts() -> None:
    assert metrics.classwise_ece(probabilities=[[1, 0], [1, 0]], target=[1, 1]) == 1
    assert cal.ECELoss(view="class-wise")(torch.tensor([[1e4, -1e4]] * 2), torch.tensor([1, 1])) == 1
    for convention in binned.CONVENTIONS:
        assert metrics.ece([0.0, 0.0], [1, 1], convention=convention) == 1
        assert metrics.mce([0.0, 0.0], [1, 1], convention=convention) == 1


# Rows of few small whole numbers: many zeros and ones, ties and probabilities on the edges of bins.
rows = st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any).map(lambda row: [k / sum(row) for k in row])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(rows, st.integers(0, 2)), min_size=1, max_size=12), st.sampled_from([1, 2, 6, 15, 20]))
def test_class_wise_ece_equals_its_definition(drawn: list[tuple[list[float], int]], bins: int) -> None:
    p, y = zip(*drawn, strict=True)
    for kind in (np.float32, np.float64):
        given: Any = {"probabilities": np.array(p, dtype=kind), "target": y}
        expected = reference.classwise_ece(given["probabilities"].tolist(), y, bins, kind)
        assert metrics.classwise_ece(bins=bins, **given) == close(expected)


@settings(max_examples=100, deadline=None)
@given(samples, st.sampled_from([np.float32, np.float64]), st.sampled_from([1, 7, 10, 15]))
def test_the_torchmetrics_preset_is_that_of_float32(pairs: list[tuple[float, int]], kind: type, bins: int) -> None:
    z, c = (np.array(column) for column in zip(*pairs, strict=True))
    z = np.concatenate((z.astype(kind), np.nextafter(z.astype(kind), kind(0.5))))
    c = np.concatenate((c, c))
    expected = reference.torchmetrics_ece(z.tolist(), c.tolist(), bins)
    assert metrics.ece(z, c, bins, "torchmetrics") == pytest.approx(expected, abs=1e-7)


def test_nll_stays_finite_for_saved_zeros_and_vast_logits() -> None:
    assert metrics.log_loss(probabilities=np.eye(2, dtype=np.float32), target=[1, 1]) == pytest.approx(43.668, rel=1e-4)
    assert metrics.log_loss(logits=[[1e300, -1e300], [0.0, 0.0]], target=[1, 0]) == pytest.approx(1e300)


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_parity_with_torchmetrics(bins: int) -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    rng = np.random.default_rng(4)
    edges = np.append(np.arange(bins + 1) / bins, 0.6000000238)
    for z in (rng.random(500) ** 0.2, np.round(rng.random(500), 1), edges):
        for kind in (np.float32, np.float64):
            # Two classes of which the first is predicted, as long as it has the larger probability.
            confidence = np.maximum(z, 1 - z).astype(kind)
            p = np.stack((confidence, 1 - confidence), 1)
            target = (rng.random(len(z)) > z).astype(int)
            for norm, metric in (("l1", metrics.ece), ("max", metrics.mce)):
                theirs = functional.multiclass_calibration_error(
                    torch.from_numpy(p), torch.from_numpy(target), num_classes=2, n_bins=bins, norm=norm
                ).item()
                ours = metric(probabilities=p, target=target, bins=bins, convention="torchmetrics")
                assert ours == pytest.approx(theirs, abs=1e-6)
        # Of pairs, theirs are called binary, and not cast.
        single, correct = torch.from_numpy(z).float(), torch.from_numpy(rng.random(len(z)) < z).long()
        theirs = functional.binary_calibration_error(single, correct, n_bins=bins).item()
        assert metrics.ece(z, correct, bins, "torchmetrics") == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_parity_with_netcal(bins: int) -> None:
    netcal = pytest.importorskip("netcal.metrics", reason="netcal is not installed")
    rng = np.random.default_rng(5)
    for z in (rng.random(500), np.round(rng.random(500), 1), np.arange(bins + 1) / bins):
        correct = (rng.random(len(z)) < z).astype(int)
        # Binary, with the confidence that of class 1: netcal then measures what (confidence, correct) mean here.
        theirs = netcal.ECE(bins).measure(z, correct)
        assert metrics.ece(z, correct, bins, "netcal") == pytest.approx(theirs, rel=1e-9)


def test_parity_with_relplot() -> None:
    relplot = pytest.importorskip("relplot", reason="relplot is not installed")
    assert metrics.smooth_ece(Z, C) == pytest.approx(relplot.smECE(Z, C), abs=1e-3)
