"""The figures show what the files of a store say, read here with nothing but the json module."""

import csv
import io
import json
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from calibrant import functional
from calibrant.files import FileError
from calibrant_lab.paper.figures import DRAWN, caption, write_figure
from calibrant_lab.paper.figures.cost import figure3
from calibrant_lab.paper.figures.numbers import numbers_of, shift_csv
from calibrant_lab.paper.figures.parts import NotRunError
from calibrant_lab.paper.figures.shift import figure6
from calibrant_lab.paper.profiles import FIGURES, paper_sweep
from calibrant_lab.shift.corruptions import SEVERITIES
from calibrant_lab.shift.evaluation import ShiftRequest, ShiftResult, ShiftScore
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.store import Store
from tests.lab.stores import failed, filled_store, plan_maker, plausible

Read = list[tuple[dict[str, Any], dict[str, Any], Path]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Six λ, four φ, four T, five seeds."""
    return filled_store(tmp_path_factory.mktemp("runs"), "cpu")


@pytest.fixture(scope="module")
def plan(store: Store) -> Plan:
    return plan_maker("digits", "cpu")(store)


def read(store: Store, **settings: object) -> Read:
    """Configuration, result and folder of the trials with some settings, by seed."""
    found = []
    for path in store.folder.glob("*/result.json"):
        written = json.loads((path.parent / "config.json").read_text())
        configuration = {**written, **written["options"], **written["settings"]}
        if all(configuration[name] == value for name, value in settings.items()):
            found.append((configuration, json.loads(path.read_text()), path.parent))
    assert found
    return sorted(found, key=lambda trial: (trial[0].get("weight"), trial[0]["seed"]))


def curves(figure: Figure, panel: int) -> list[np.ndarray]:
    return [np.array(line.get_xydata()) for line in figure.axes[panel].lines]


def curve(figure: Figure, panel: int, line: int) -> np.ndarray:
    return curves(figure, panel)[line]


def texts(figure: Figure) -> set[str]:
    found = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    for axes in figure.axes:
        # Titles stand on the left.
        found |= {axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()}
        found |= {text.get_text() for text in axes.texts}
    return found


@pytest.mark.parametrize(
    ("panel", "line", "row", "key"),
    [(0, 0, "nll", "train_accuracy"), (0, 1, "nll", "test_accuracy"), (1, 0, "nll", "train_ece"),
     (3, 1, "esd", "test_ece")],
)  # fmt: skip
def test_figure1_has_the_mean_and_deviation_of_the_histories(
    plan: Plan, store: Store, panel: int, line: int, row: str, key: str
) -> None:
    chosen = {"weight": plan.rows[-1].trials[0].option("weight")} if row == "esd" else {"reduced_split": False}
    folders = [folder for _, _, folder in read(store, method=row, **chosen)]
    histories = [json.loads((folder / "history.json").read_text()) for folder in folders]
    assert len(histories) == 5
    by_epoch = list(zip(*([entry[key] for entry in history] for history in histories), strict=True))
    figure = DRAWN["figure1"](plan, store)
    drawn = curve(figure, panel, line)
    np.testing.assert_allclose(drawn[:, 0], range(1, len(histories[0]) + 1))
    np.testing.assert_allclose(drawn[:, 1], [statistics.fmean(values) for values in by_epoch])
    band = figure.axes[panel].collections[line].get_paths()[0].vertices
    at_end = np.asarray(band)[np.asarray(band)[:, 0] == len(by_epoch), 1]
    mean, deviation = statistics.fmean(by_epoch[-1]), statistics.stdev(by_epoch[-1])
    # A share is never above 1, whatever its deviation.
    expected = (max(0.0, mean - deviation), min(1.0, mean + deviation))
    assert (at_end.min(), at_end.max()) == pytest.approx(expected)


@pytest.mark.parametrize(("panel", "method", "setting"), [(0, "mmce", "bandwidth"), (1, "sb-ece", "softness")])
def test_figure2_has_the_test_ece_of_the_search_and_esd_as_a_line(
    plan: Plan, store: Store, panel: int, method: str, setting: str
) -> None:
    row = next(row for row in plan.rows if row.trials[0].method == method)
    weight, best = row.trials[0].option("weight"), row.trials[0].option(setting)
    figure = DRAWN["figure2"](plan, store)
    searched = read(store, method=method, weight=weight, seed=0)
    expected = sorted((trial[setting], result["test"]["ece"]) for trial, result, _ in searched)
    np.testing.assert_allclose(curve(figure, panel, 0), expected)
    assert len(expected) == 4
    seeds = [result["test"]["ece"] for _, result, _ in read(store, method=method, weight=weight, **{setting: best})]
    np.testing.assert_allclose(curve(figure, panel, 1), [(best, statistics.fmean(seeds))])
    trained = read(store, method="esd", weight=plan.rows[-1].trials[0].option("weight"))
    esd = [result["test"]["ece"] for _, result, _ in trained]
    level = next(line for line in curves(figure, panel) if line[:, 0].tolist() == [0, 1])
    np.testing.assert_allclose(level[:, 1], statistics.fmean(esd))
    assert figure.axes[panel].get_xscale() == ("log" if setting == "softness" else "linear")
    assert f"at λ = {weight:g}" in figure.axes[panel].get_title(loc="left")


def test_figure3_adds_up_the_trials_of_a_search_each_once(plan: Plan, store: Store) -> None:
    figure = figure3([plan], store)
    single, total = (
        [bar.get_width() for bar in next(one for one in axes.containers if isinstance(one, BarContainer))]
        for axes in figure.axes
    )
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["NLL", "NLL, reduced split", "MMCE", "SB-ECE", "ESD"]
    for place, method in ((2, "mmce"), (3, "sb-ece"), (4, "esd")):
        runs = read(store, method=method)
        seconds = [result["cost"]["processor_seconds"] for _, result, _ in runs]
        assert single[place] == pytest.approx(statistics.fmean(seconds))
        searched = [result["cost"]["processor_seconds"] for trial, result, _ in runs if trial["seed"] == 0]
        assert total[place] == pytest.approx(sum(searched))
        assert len(searched) == (6 if method == "esd" else 9)
    assert total[0] == pytest.approx(read(store, method="nll", reduced_split=False)[0][1]["cost"]["processor_seconds"])
    assert {"1 run", "9 runs", "6 runs", "processor time, seconds", "wall clock"} <= texts(figure)
    clock = [result["cost"]["seconds"] for _, result, _ in read(store, method="esd")]
    assert curve(figure, 0, 0)[4, 0] == pytest.approx(statistics.fmean(clock))


def test_figure3_of_several_recipes_stands_in_the_order_of_their_cost(tmp_path: Path) -> None:
    store, plans = Store(tmp_path), []
    for recipe in ("snli", "mnist", "digits"):
        plans.append(plan_maker(recipe, "quick")(store))
        plausible(store, plans[-1].rows[0].trials[0])
    figure = figure3(plans, store)
    seconds = {one: read(store, recipe=one)[0][1]["cost"]["processor_seconds"] for one in ("snli", "mnist", "digits")}
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert [label.split()[0] for label in labels] == sorted(seconds, key=lambda recipe: seconds[recipe])
    np.testing.assert_allclose(curve(figure, 0, 0)[:, 1], sorted(seconds.values()))
    assert figure.axes[0].get_ylabel() == "processor time, seconds"


def test_figure3_counts_what_an_unfinished_search_has_run(tmp_path: Path) -> None:
    store, make = Store(tmp_path), plan_maker("digits", "quick")
    empty = make(store)
    plausible(store, empty.rows[0].trials[0])
    plausible(store, empty.rows[-1].searches[0].candidates[0])
    assert "1 of 2 runs" in texts(figure3([make(store)], store))


def test_figure4_has_the_papers_curves_and_the_esd_of_both_networks(plan: Plan, store: Store) -> None:
    import torch

    figure = DRAWN["figure4"](plan, store)
    _, _, folder = read(store, method="nll", seed=0, reduced_split=False)[0]
    with np.load(folder / "test.npz") as kept:
        logits, target = torch.as_tensor(kept["logits"]), torch.as_tensor(kept["target"])
    confidence, predicted = logits.double().softmax(1).max(1)
    correct = (predicted == target).double()
    order = confidence.argsort()
    np.testing.assert_allclose(curve(figure, 0, 0)[1:, 1], correct[order].cumsum(0) / len(target), atol=1e-9)
    np.testing.assert_allclose(curve(figure, 0, 1)[1:, 1], confidence[order].cumsum(0) / len(target), atol=1e-6)
    title = figure.axes[0].get_title(loc="left")
    number, power = title.rpartition("ESD ")[2].split(" \N{MULTIPLICATION SIGN} 10")
    power = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    esd = float(functional.esd(confidence, correct))
    assert float(f"{number.replace(chr(0x2212), '-')}e{power}") == pytest.approx(esd, rel=0.01)
    assert figure.axes[1].get_title(loc="left").startswith("temperature ")


def test_figure5_has_the_validation_accuracy_by_weight_and_the_threshold(plan: Plan, store: Store) -> None:
    figure = DRAWN["figure5"](plan, store)
    lines = curves(figure, 0)
    baseline = read(store, method="nll", seed=0, reduced_split=False)[0][1]["validation"]["accuracy"]
    np.testing.assert_allclose(lines[0][:, 1], baseline)
    np.testing.assert_allclose(lines[1][:, 1], baseline - 0.015)
    first = {"mmce": {"bandwidth": 0.4}, "sb-ece": {"softness": 0.01}, "esd": {}}
    searched = [line for line in lines if len(line) == 6]
    for drawn, (method, settings) in zip(searched, first.items(), strict=True):
        found = read(store, method=method, seed=0, **settings)
        expected = [(trial["weight"], result["validation"]["accuracy"]) for trial, result, _ in found]
        np.testing.assert_allclose(drawn, expected)
    rings = {tuple(line[0]) for line in lines if len(line) == 1}
    for row in plan.rows[2:]:
        chosen = row.searches[0].chosen
        assert chosen is not None
        result = store.result(chosen)
        assert result is not None
        assert (chosen.option("weight"), result.validation["accuracy"]) in rings


def numbers(name: str, plan: Plan, store: Store) -> list[dict[str, str]]:
    found = list(csv.DictReader(io.StringIO(numbers_of(name, plan, store))))
    assert {(line["recipe"], line["model"], line["epochs"]) for line in found} == {("digits", "lenet5", "40")}
    return found


def test_the_numbers_behind_the_figures_are_those_drawn(plan: Plan, store: Store) -> None:
    drawn = {name: DRAWN[name](plan, store) for name in FIGURES[:5]}
    assert {figure.legends[0].get_title().get_text() for figure in drawn.values()} == {"digits (lenet5)"}
    last = [one for one in numbers("figure1", plan, store) if (one["row"], one["epoch"]) == ("ESD", "40")]
    mean = statistics.fmean(float(one["test_ece"]) for one in last)
    assert mean == pytest.approx(curve(drawn["figure1"], 3, 1)[-1, 1], rel=1e-4)
    for name, option, score in (("figure2", "bandwidth", "test_ece"), ("figure5", "weight", "validation_accuracy")):
        found = [one for one in numbers(name, plan, store) if (one["row"], one["option"]) == ("MMCE", option)]
        line = next(line for line in curves(drawn[name], 0) if len(line) == len(found) > 2)
        np.testing.assert_allclose(line, sorted((float(one["value"]), float(one[score])) for one in found))
        assert [one["chosen"] for one in found].count("true") == 1
    found = [one for one in numbers("figure3", plan, store) if one["row"] == "SB-ECE"]
    needed = [float(one["processor_seconds"]) for one in found if one["needed_for_one_tuned_network"] == "true"]
    bars = next(one for one in drawn["figure3"].axes[1].containers if isinstance(one, BarContainer))
    assert bars[3].get_width() == pytest.approx(sum(needed))
    assert (len(needed), len(found)) == (9, 13)
    ends = [one for one in numbers("figure4", plan, store) if float(one["share_of_samples"]) == 1]
    accuracies = [float(one["cumulative_accuracy"]) for one in ends]
    assert accuracies == pytest.approx([curve(drawn["figure4"], panel, 0)[-1, 1] for panel in (0, 1)], rel=1e-5)


def shifted(accuracy: float, limit: int | None = None) -> ShiftResult:
    """Accuracy falls by a point a severity; in fog by twice as much."""

    def score(loss: float) -> ShiftScore:
        return ShiftScore(accuracy - loss, 0.1 + loss, 0.05 + loss)

    worse = {name: tuple(score(k * s / 100) for s in SEVERITIES) for k, name in ((1, "contrast"), (2, "fog"))}
    return ShiftResult(ShiftRequest("generated", ("contrast", "fog"), limit, ""), limit or 1000, 1.5, score(0.0), worse)


def test_figure6_shows_means_and_the_spread_over_seeds_and_corruptions() -> None:
    rows = {"NLL": [shifted(0.9), shifted(0.8)], "+ ESD": [shifted(0.7)], "+ MMCE": []}
    figure = figure6(rows, "digits (lenet5)")
    accuracy, ece, cooled = figure.axes
    assert [axes.get_title("left").partition(",")[0] for axes in figure.axes] == ["accuracy", "ECE", "ECE"]
    assert accuracy.lines[0].get_ydata() == pytest.approx([0.85 - 0.015 * s for s in range(6)])
    assert cooled.lines[2].get_ydata() == pytest.approx([0.05 + 0.015 * s for s in range(6)])
    assert ece.get_ylim() == cooled.get_ylim()
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert all(low <= value <= high for line in axes.lines for value in np.asarray(line.get_ydata()))
    corruptions, seeds = ([line[:, 1] for line in one.get_segments()] for one in accuracy.collections[:2])  # type: ignore[attr-defined]
    reach = statistics.stdev([0.9, 0.8])
    for severity in range(6):
        mean = 0.85 - 0.015 * severity
        assert seeds[severity] == pytest.approx([mean - reach, mean + reach])
        assert corruptions[severity] == pytest.approx([mean - 0.0025 * severity, mean + 0.0025 * severity])
    assert {"NLL", "ESD", "± standard deviation of 2 seeds"} <= texts(figure)
    assert figure.legends[0].get_title().get_text().startswith("digits (lenet5), distribution shift: 2 generated")


def test_figure6_names_a_limit_and_refuses_to_mix() -> None:
    limited = figure6({"NLL": [shifted(0.9, limit=50)]})
    assert "50 test images" in limited.legends[0].get_title().get_text()
    with pytest.raises(ValueError, match="images or corruptions"):
        figure6({"NLL": [shifted(0.9)], "+ ESD": [shifted(0.9, limit=50)]})
    with pytest.raises(NotRunError, match="finished trials"):
        figure6({"NLL": []})


def test_the_numbers_behind_figure6_are_all_scores() -> None:
    text = shift_csv(paper_sweep("table1", "digits", "quick"), {"+ ESD": [shifted(0.9), shifted(0.8)], "NLL": []})
    found = list(csv.DictReader(io.StringIO(text)))
    assert len(found) == 2 * (1 + 2 * 5)
    assert {(one["recipe"], one["model"], one["row"]) for one in found} == {("digits", "lenet5", "ESD")}
    clean = [one for one in found if one["corruption"] == "none"]
    assert [(one["severity"], one["accuracy"]) for one in clean] == [("0", "0.9"), ("0", "0.8")]
    worst = [one["accuracy"] for one in found if (one["corruption"], one["severity"]) == ("fog", "5")]
    assert worst == ["0.8", "0.7"]


def test_figures_of_a_search_with_several_seeds_show_their_means(tmp_path: Path) -> None:
    store = filled_store(tmp_path, search_seeds=2)
    plan = plan_maker("digits", "quick", search_seeds=2)(store)

    def accuracy(**settings: object) -> float:
        found = [result["validation"]["accuracy"] for _, result, _ in read(store, **settings)]
        assert len(found) == 2
        return statistics.fmean(found)

    lines = curves(DRAWN["figure5"](plan, store), 0)
    np.testing.assert_allclose(lines[0][:, 1], accuracy(method="nll", reduced_split=False))
    [drawn] = [line for line in lines if len(line) == 2 and line[0, 1] != line[1, 1]][2:]
    np.testing.assert_allclose(drawn[:, 1], [accuracy(method="esd", weight=weight) for weight in drawn[:, 0]])
    assert "mean of 2 seeds" in texts(DRAWN["figure2"](plan, store))


@pytest.mark.parametrize("name", FIGURES[:5])
def test_a_figure_without_trials_names_the_recipe(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    empty = plan_maker("digits", "quick")(store)
    failed(store, empty.rows[0].trials[0])
    with pytest.raises(NotRunError, match=r"needs .* for digits"):
        DRAWN[name](empty, store)


def test_figures_show_what_there_is_of_a_plan(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    make = plan_maker("digits", "quick")
    for trial in store.trials():
        if trial.configuration.method in ("sb-ece", "esd"):
            trial.remove()
    left = Store(tmp_path)
    plan = make(left)
    assert "not run here" in texts(DRAWN["figure2"](plan, left))
    assert "ESD, all seeds" not in texts(DRAWN["figure2"](plan, left))
    assert len(DRAWN["figure1"](plan, left).axes) == 2
    assert "ESD" not in texts(DRAWN["figure5"](plan, left))


@pytest.mark.slow
def test_a_figure_has_a_caption_and_the_same_bytes_every_time(plan: Plan, store: Store, tmp_path: Path) -> None:
    assert tuple(DRAWN) == FIGURES
    assert all(all(caption(name, plan.sweep)) for name in FIGURES)
    for ending in ("svg", "png", "pdf"):
        paths = [tmp_path / f"{k}.{ending}" for k in (1, 2)]
        for path in paths:
            write_figure(path, DRAWN["figure2"](plan, store))
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_figure_of_an_unknown_kind_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"\.svg, \.png, \.pdf"):
        write_figure(tmp_path / "figure.bmp", Figure())
    assert list(tmp_path.iterdir()) == []


def test_a_caption_states_the_rule_of_the_sweep() -> None:
    sweep = paper_sweep("table1", "digits", "quick", {"tolerance": 0.03, "select": "nll"})
    assert re.search(r"3 points .* validation NLL", caption("figure5", sweep)[1])
