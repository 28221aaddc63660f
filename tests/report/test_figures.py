import io
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.stats import binomtest

from calibrant import metrics, report
from calibrant.metrics.predictions import Predictions
from calibrant.report.chance import wilson_interval
from calibrant.report.classes import class_rows
from tests.report.data import EDGE_CASES, classifier, confidences


def drawn(figure: Figure) -> bytes:
    stream = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(stream, format="svg")
    return stream.getvalue()


@pytest.mark.parametrize("name", EDGE_CASES)
def test_a_titled_diagram_draws_without_a_warning(name: str) -> None:
    # The pages of the same cases, in test_html.py, draw all the other figures.
    svg = drawn(report.reliability_diagram(EDGE_CASES[name], convention="torchmetrics", title="$x^2 & <b>"))
    assert b"$x^2 &amp; &lt;b&gt;" in svg


def test_a_title_loses_what_would_turn_or_break_the_text_around_it() -> None:
    svg = drawn(report.cumulative_plot(EDGE_CASES["three samples"], title="a\u202e\x1bb\ufffe"))
    assert "a b\ufffd".encode() in svg
    ElementTree.fromstring(svg)  # noqa: S314 (we have just written it ourselves)


def dots(figure: Figure, line: int) -> np.ndarray:
    return np.array(figure.axes[0].lines[line].get_xydata())


def test_dots_stand_at_mean_confidence_and_accuracy_and_empty_bins_are_left_out() -> None:
    given = confidences((0.62, 0.5, 10), (0.64, 1.0, 10), (0.97, 0.9, 20))
    figure = report.reliability_diagram(given)
    np.testing.assert_allclose(dots(figure, 1), [(0.63, 0.75), (0.97, 0.9)])
    gaps = next(part for part in figure.axes[0].collections if isinstance(part, LineCollection))
    np.testing.assert_allclose(gaps.get_segments(), [[(0.63, 0.75), (0.63, 0.63)], [(0.97, 0.9), (0.97, 0.97)]])
    histogram: Any = figure.axes[1].patches
    np.testing.assert_allclose([bar.get_height() for bar in histogram], [0.5, 0.5])


@pytest.mark.parametrize(("right", "samples"), [(0, 1), (1, 1), (3, 10), (10, 10), (812, 1000)])
def test_the_box_is_the_wilson_interval(right: int, samples: int) -> None:
    low, high = wilson_interval(np.array([float(right)]), np.array([float(samples)]))
    expected = binomtest(right, samples).proportion_ci(method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_the_curves_are_those_of_the_papers_appendix() -> None:
    given = classifier(samples=150, sharpness=2.0)
    figure = report.cumulative_plot(given)
    order = np.sort(given.confidence)
    accuracy = [0.0, *(((given.confidence <= z) & given.correct).mean() for z in order)]
    confidence = [0.0, *((given.confidence * (given.confidence <= z)).mean() for z in order)]
    np.testing.assert_allclose(dots(figure, 0)[:, 1], accuracy, atol=1e-12)
    np.testing.assert_allclose(dots(figure, 1)[:, 1], confidence, atol=1e-12)
    difference = np.array(figure.axes[1].lines[1].get_ydata())
    assert np.abs(difference).max() == pytest.approx(100 * metrics.ks_error(given))


def test_a_long_curve_is_thinned_but_keeps_its_ends_and_its_largest_value() -> None:
    given = classifier(samples=20_000, sharpness=1.3)
    x, y = np.array(report.cumulative_plot(given).axes[1].lines[1].get_xydata()).T
    assert len(x) < 500
    assert (x[0], x[-1]) == (0, 1)
    assert np.abs(y).max() == pytest.approx(100 * metrics.ks_error(given))
    assert y[-1] == pytest.approx(100 * metrics.gap(given))


def test_class_rows_agree_with_counting_one_by_one() -> None:
    given = classifier(samples=200, classes=5, sharpness=2.0, shift=1.0)
    probabilities, target = given.of_classes("this test")
    predicted = probabilities.argmax(1)
    for row in class_rows(given, convention="guo"):
        mine, said = target == row.label, predicted == row.label
        assert (row.samples, row.predicted) == (mine.sum(), said.sum())
        assert row.share == pytest.approx(mine.mean())
        assert row.recall == pytest.approx(said[mine].mean())
        assert row.precision == pytest.approx(mine[said].mean())
        assert row.confidence == pytest.approx(given.confidence[said].mean())
        assert row.probability == pytest.approx(probabilities[:, row.label].mean())
        assert row.error == pytest.approx(metrics.ece(probabilities[:, row.label], mine, convention="guo"))


def test_of_many_classes_the_worst_twenty_are_shown_worst_first() -> None:
    given: Predictions = EDGE_CASES["a thousand classes"]
    rows = class_rows(given)
    errors = np.sort(metrics.classwise.classwise_errors(given, convention="paper"))[::-1]
    np.testing.assert_allclose([row.error for row in rows], errors[:20])
    labels = report.classwise_plot(given).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [str(row.label) for row in rows]
    assert len(class_rows(given, most=None)) == 1000


def test_the_users_settings_neither_show_nor_change() -> None:
    given = confidences((0.9, 0.8, 50))
    plain = report.reliability_diagram(given)
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30}):
        before = dict(mpl.rcParams)
        odd = report.reliability_diagram(given)
        assert dict(mpl.rcParams) == before
    assert odd.axes[0].get_facecolor() == plain.axes[0].get_facecolor()
    assert odd.axes[0].xaxis.label.get_fontsize() == plain.axes[0].xaxis.label.get_fontsize()


def test_the_breakdown_needs_classes() -> None:
    with pytest.raises(ValueError, match="needs every class"):
        report.classwise_plot(confidences((0.9, 0.8, 50)))
