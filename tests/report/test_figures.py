import io
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from calibrant import metrics, report
from calibrant.report.style import same_axes
from tests.report.data import EDGE_CASES, classifier, confidences


def drawn(figure: Figure) -> bytes:
    stream = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(stream, format="svg")
    return stream.getvalue()


def test_a_title_is_literal_and_loses_what_would_turn_the_text_around_it() -> None:
    # The pages of the edge cases, in test_page.py, draw all figures.
    svg = drawn(report.figures.cumulative_plot(EDGE_CASES["three samples"], title="$x^2 & <b>\u202e\x1bb\ufffe"))
    assert "$x^2 &amp; &lt;b&gt; b\ufffd".encode() in svg
    ElementTree.fromstring(svg)  # noqa: S314 (we have just written it ourselves)


def dots(figure: Figure, line: int) -> np.ndarray:
    return np.array(figure.axes[0].lines[line].get_xydata())


def test_dots_stand_at_mean_confidence_and_accuracy_and_empty_bins_are_left_out() -> None:
    given = confidences((0.62, 0.5, 10), (0.64, 1.0, 10), (0.97, 0.9, 20))
    figure = report.figures.reliability_diagram(given)
    np.testing.assert_allclose(dots(figure, 1), [(0.63, 0.75), (0.97, 0.9)])
    gaps = next(part for part in figure.axes[0].collections if isinstance(part, LineCollection))
    np.testing.assert_allclose(gaps.get_segments(), [[(0.63, 0.75), (0.63, 0.63)], [(0.97, 0.9), (0.97, 0.97)]])
    histogram: Any = figure.axes[1].patches
    np.testing.assert_allclose([bar.get_height() for bar in histogram], [0.5, 0.5])


def test_the_curves_are_those_of_the_papers_appendix() -> None:
    given = classifier(samples=150, sharpness=2.0)
    figure = report.figures.cumulative_plot(given)
    order = np.sort(given.confidence)
    accuracy = [0.0, *(((given.confidence <= z) & given.correct).mean() for z in order)]
    confidence = [0.0, *((given.confidence * (given.confidence <= z)).mean() for z in order)]
    np.testing.assert_allclose(dots(figure, 0)[:, 1], accuracy, atol=1e-12)
    np.testing.assert_allclose(dots(figure, 1)[:, 1], confidence, atol=1e-12)
    difference = np.array(figure.axes[1].lines[1].get_ydata())
    assert np.abs(difference).max() == pytest.approx(100 * metrics.ks_error(given))


def test_a_long_curve_is_thinned_but_keeps_its_ends_and_its_largest_value() -> None:
    given = classifier(samples=20_000, sharpness=1.3)
    x, y = np.array(report.figures.cumulative_plot(given).axes[1].lines[1].get_xydata()).T
    assert len(x) < 500
    assert (x[0], x[-1]) == (0, 1)
    assert np.abs(y).max() == pytest.approx(100 * metrics.ks_error(given))
    assert y[-1] == pytest.approx(100 * metrics.gap(given))


def test_of_many_classes_the_worst_twenty_are_shown_worst_first() -> None:
    given = classifier(samples=600, classes=30, sharpness=2.0)
    probabilities, target = given.of_classes("this test")
    gaps = probabilities.mean(0) - np.bincount(target, minlength=30) / len(target)
    axes = report.figures.classwise_plot(given).axes[0]
    worst = np.argsort(-np.abs(gaps))[:20]
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(k) for k in worst]
    np.testing.assert_allclose(np.asarray(axes.collections[1].get_offsets())[:, 0], 100 * gaps[worst])


def test_the_users_settings_neither_show_nor_change() -> None:
    given = confidences((0.9, 0.8, 50))
    plain = report.figures.reliability_diagram(given)
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30}):
        before = dict(mpl.rcParams)
        odd = report.figures.reliability_diagram(given)
        assert dict(mpl.rcParams) == before
    assert odd.axes[0].get_facecolor() == plain.axes[0].get_facecolor()
    assert odd.axes[0].xaxis.label.get_fontsize() == plain.axes[0].xaxis.label.get_fontsize()


def test_the_breakdown_needs_classes() -> None:
    with pytest.raises(ValueError, match="needs every class"):
        report.figures.classwise_plot(confidences((0.9, 0.8, 50)))


def test_a_weight_of_two_draws_a_sample_twice() -> None:
    given = confidences((0.62, 0.5, 10), (0.64, 1.0, 10), (0.97, 0.9, 20))
    weighted = metrics.predictions(given.confidence, given.correct, sample_weight=np.full(40, 2.0))
    repeated = metrics.predictions(given.confidence.repeat(2), given.correct.repeat(2))
    for draw in (report.figures.reliability_diagram, report.figures.cumulative_plot):
        one, other = draw(weighted), draw(repeated)
        for axes, same in zip(one.axes, other.axes, strict=True):
            for line, equal in zip(axes.lines, same.lines, strict=True):
                np.testing.assert_allclose(np.array(line.get_xydata()), np.array(equal.get_xydata()))
            for patch, like in zip(axes.patches, same.patches, strict=True):
                np.testing.assert_allclose(patch.get_extents().bounds, like.get_extents().bounds)


def test_gaps_of_groups_and_windows_stand_where_the_result_says() -> None:
    rng = np.random.default_rng(0)
    risk, region = rng.uniform(0.1, 0.9, 600), rng.choice(["a$b", "south of a place with a long name"], 600)
    event = rng.random(600) < risk - 0.3 * (region == "a$b")
    by_group = metrics.calibration_by_group(risk, event, groups=region)
    figure = report.figures.groups_plot(by_group)
    dots_of_groups = figure.axes[0].collections[1]
    assert np.asarray(dots_of_groups.get_offsets())[:, 0].tolist() == pytest.approx(
        [100 * group.gap.value for group in by_group.groups]
    )
    assert b"a$b" in drawn(figure)
    over_time = metrics.calibration_over_time(risk, event, time=np.arange(600))
    axes = report.figures.time_plot(over_time).axes[0]
    assert np.array(axes.lines[1].get_ydata()).tolist() == pytest.approx(
        [100 * window.gap.value for window in over_time.windows]
    )


def test_a_change_is_drawn_where_it_is() -> None:
    found = metrics.calibration_over_time(np.full(600, 0.7), np.arange(600) < 300, time=np.arange(600), windows=6)
    assert found.changed
    line = report.figures.time_plot(found).axes[0].lines[-1]
    assert np.array(line.get_xdata()).tolist() == pytest.approx([2.5, 2.5])  # between the third and the fourth window


@pytest.mark.parametrize("name", ["reliability_diagram", "cumulative_plot", "classwise_plot"])
def test_figures_can_be_drawn_into_axes_of_ones_own(name: str) -> None:
    own = Figure()
    axes = own.subplots(1, 2)
    assert getattr(report.figures, name)(classifier(samples=100), ax=axes[1], title="a $ sign") is own
    assert len(axes[0].lines) == 0
    assert len(axes[1].lines) > 0
    assert axes[1].get_legend() is not None


def test_axes_that_stand_side_by_side_agree() -> None:
    figures = [report.figures.cumulative_plot(classifier(samples=200, sharpness=sharpness)) for sharpness in (1.0, 3.0)]
    same_axes(figures)
    for one, other in zip(*(figure.axes for figure in figures), strict=True):
        assert one.get_ylim() == other.get_ylim()
