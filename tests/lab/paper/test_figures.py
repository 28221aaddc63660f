"""The figures show what the files of a store say, read here with nothing but the json module."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from calibrant import functional
from calibrant.files import FileError
from calibrant_lab.json_files import write_json
from calibrant_lab.names import FIGURES, FigureName
from calibrant_lab.paper import figures
from calibrant_lab.paper.figure_cost import BY_COMPLEXITY, figure3
from calibrant_lab.paper.figure_numbers import curves_csv
from calibrant_lab.paper.figures import CAPTIONS, DRAWN, NotRunError, write_figure
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.protocol import PROFILES, Plan, Protocol
from calibrant_lab.trials.store import Store
from tests.lab.filled_stores import filled_store, plan_maker, write_failure, write_trial

Read = list[tuple[dict[str, Any], dict[str, Any], Path]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Six λ, four φ, four T, five seeds."""
    return filled_store(tmp_path_factory.mktemp("runs"), "cpu")


@pytest.fixture(scope="module")
def plan(store: Store) -> Plan:
    return plan_maker(RECIPES["digits"], "cpu")(store)


def read(store: Store, **settings: object) -> Read:
    """Configuration, result and folder of the trials with some settings, by seed."""
    found = []
    for path in store.folder.glob("*/result.json"):
        configuration = json.loads((path.parent / "config.json").read_text())
        if all(configuration[name] == value for name, value in settings.items()):
            found.append((configuration, json.loads(path.read_text()), path.parent))
    assert found
    return sorted(found, key=lambda trial: (trial[0]["weight"], trial[0]["seed"]))


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
    [
        (0, 0, "nll", "train_accuracy"),
        (0, 1, "nll", "test_accuracy"),
        (1, 0, "nll", "train_ece"),
        (1, 1, "nll", "test_ece"),
        (3, 1, "esd", "test_ece"),
    ],
)
def test_figure1_has_the_mean_and_deviation_of_the_histories(
    plan: Plan, store: Store, panel: int, line: int, row: str, key: str
) -> None:
    chosen = {"weight": plan.rows[-1].trials[0].weight} if row == "esd" else {"reduced_split": False}
    histories = [
        json.loads((folder / "history.json").read_text()) for _, _, folder in read(store, objective=row, **chosen)
    ]
    assert len(histories) == 5
    by_epoch = list(zip(*([entry[key] for entry in history] for history in histories), strict=True))
    figure = figures.figure1(plan, store)
    drawn = curve(figure, panel, line)
    np.testing.assert_allclose(drawn[:, 0], range(1, len(histories[0]) + 1))
    np.testing.assert_allclose(drawn[:, 1], [statistics.fmean(values) for values in by_epoch])
    band = figure.axes[panel].collections[line].get_paths()[0].vertices
    at_end = np.asarray(band)[np.asarray(band)[:, 0] == len(by_epoch), 1]
    assert at_end.max() - at_end.min() == pytest.approx(2 * statistics.stdev(by_epoch[-1]))


@pytest.mark.parametrize(("panel", "objective", "setting"), [(0, "mmce", "bandwidth"), (1, "sb-ece", "softness")])
def test_figure2_has_the_test_ece_of_the_search_and_esd_as_a_line(
    plan: Plan, store: Store, panel: int, objective: str, setting: str
) -> None:
    row = next(row for row in plan.rows if row.trials[0].objective == objective)
    weight, best = row.trials[0].weight, getattr(row.trials[0], setting)
    figure = figures.figure2(plan, store)
    searched = read(store, objective=objective, weight=weight, seed=0)
    expected = sorted((trial[setting], result["outcome"]["ece"]) for trial, result, _ in searched)
    np.testing.assert_allclose(curve(figure, panel, 0), expected)
    assert len(expected) == 4
    seeds = [
        result["outcome"]["ece"] for _, result, _ in read(store, objective=objective, weight=weight, **{setting: best})
    ]
    np.testing.assert_allclose(curve(figure, panel, 1), [(best, statistics.fmean(seeds))])
    esd = [
        result["outcome"]["ece"] for _, result, _ in read(store, objective="esd", weight=plan.rows[-1].trials[0].weight)
    ]
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
    for place, objective in ((2, "mmce"), (3, "sb-ece"), (4, "esd")):
        runs = read(store, objective=objective)
        seconds = [result["cost"]["processor_seconds"] for _, result, _ in runs]
        assert single[place] == pytest.approx(statistics.fmean(seconds))
        searched = [result["cost"]["processor_seconds"] for trial, result, _ in runs if trial["seed"] == 0]
        assert total[place] == pytest.approx(sum(searched))
        assert len(searched) == (6 if objective == "esd" else 9)
    assert total[0] == pytest.approx(
        read(store, objective="nll", reduced_split=False)[0][1]["cost"]["processor_seconds"]
    )
    assert {"1 run", "9 runs", "6 runs"} <= texts(figure)


def test_figure3_of_several_recipes_stands_in_the_order_of_their_networks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    plans = []
    for recipe in ("snli", "mnist", "digits"):
        plans.append(Protocol(RECIPES[recipe], PROFILES["quick"], {}).table1())
        write_trial(store, plans[-1].rows[0].trials[0])
    figure = figure3(plans, store)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["digits", "mnist", "snli"]
    assert set(BY_COMPLEXITY) == set(RECIPES)
    expected = [read(store, recipe=recipe)[0][1]["cost"]["processor_seconds"] for recipe in ("digits", "mnist", "snli")]
    np.testing.assert_allclose(curve(figure, 0, 0)[:, 1], expected)


def test_figure3_says_how_much_of_an_unfinished_search_it_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    make = plan_maker(RECIPES["digits"], "quick")
    tmp_path.mkdir(exist_ok=True)
    empty = make(store)
    write_trial(store, empty.rows[0].trials[0])
    write_trial(store, empty.rows[-1].searches[0].candidates[0])
    assert "1 of 2 runs" in texts(figure3([make(store)], store))


def test_figure4_has_the_papers_curves_and_the_esd_of_both_networks(plan: Plan, store: Store) -> None:
    import torch

    figure = figures.figure4(plan, store)
    _, _, folder = read(store, objective="nll", seed=0, reduced_split=False)[0]
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
    figure = figures.figure5(plan, store)
    lines = curves(figure, 0)
    baseline = read(store, objective="nll", seed=0, reduced_split=False)[0][1]["validation"]["accuracy"]
    np.testing.assert_allclose(lines[0][:, 1], baseline)
    np.testing.assert_allclose(lines[1][:, 1], baseline - 0.015)
    first = {"mmce": {"bandwidth": 0.4}, "sb-ece": {"softness": 0.01}, "esd": {}}
    searched = [line for line in lines if len(line) == 6]
    for drawn, (objective, settings) in zip(searched, first.items(), strict=True):
        found = read(store, objective=objective, seed=0, **settings)
        expected = [(trial["weight"], result["validation"]["accuracy"]) for trial, result, _ in found]
        np.testing.assert_allclose(drawn, expected)
    rings = {tuple(line[0]) for line in lines if len(line) == 1}
    for row in plan.rows[2:]:
        chosen = row.searches[0].chosen
        assert chosen is not None
        result = store.result(chosen)
        assert result is not None
        assert (chosen.weight, result.validation.accuracy) in rings


def test_a_score_that_was_not_kept_is_missing_from_the_numbers_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    plan = plan_maker(RECIPES["digits"], "quick")(store)
    write_trial(store, plan.rows[0].trials[0])
    path = store.trial(plan.rows[0].trials[0]).folder / "history.json"
    write_json(path, [{"epoch": 0, "train_accuracy": 0.5}])
    assert curves_csv(plan, store).splitlines()[1] == "NLL,0,1,0.5,nan,nan,nan"


def test_figures_of_a_search_with_several_seeds_show_their_means(tmp_path: Path) -> None:
    store = filled_store(tmp_path, search_seeds=2)
    plan = plan_maker(RECIPES["digits"], "quick", search_seeds=2)(store)
    lines = curves(figures.figure5(plan, store), 0)
    baselines = read(store, objective="nll", reduced_split=False)
    assert len(baselines) == 2
    np.testing.assert_allclose(
        lines[0][:, 1], np.mean([result["validation"]["accuracy"] for _, result, _ in baselines])
    )
    [drawn] = [line for line in lines if len(line) == 2 and line[0, 1] != line[1, 1]][2:]
    for weight, accuracy in drawn:
        found = [result["validation"]["accuracy"] for _, result, _ in read(store, objective="esd", weight=weight)]
        assert len(found) == 2
        assert accuracy == pytest.approx(np.mean(found))
    assert "mean of 2 seeds" in texts(figures.figure2(plan, store))


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("figure1", "a finished trial of the NLL"),
        ("figure2", "the search over φ of MMCE or T of SB-ECE"),
        ("figure3", "finished trials"),
        ("figure4", "the first trial of the NLL"),
        ("figure5", "a trial of the search over λ"),
    ],
)
def test_a_figure_says_what_was_not_run(tmp_path: Path, name: FigureName, needs: str) -> None:
    store = Store(tmp_path)
    empty = plan_maker(RECIPES["digits"], "quick")(store)
    write_failure(store, empty.rows[0].trials[0], "ValueError: no")
    with pytest.raises(NotRunError, match=f"needs .*{needs}, which the store does not have for digits: "):
        DRAWN[name](empty, store)


def test_figures_show_what_there_is_of_a_plan(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    make = plan_maker(RECIPES["digits"], "quick")
    for trial in store.trials():
        if trial.configuration.objective in ("sb-ece", "esd"):
            trial.remove()
    left = Store(tmp_path)
    plan = make(left)
    assert "not run here" in texts(figures.figure2(plan, left))
    assert "ESD, all seeds" not in texts(figures.figure2(plan, left))
    assert len(figures.figure1(plan, left).axes) == 2
    assert "ESD" not in texts(figures.figure5(plan, left))


def test_a_figure_has_a_caption_and_the_same_bytes_every_time(plan: Plan, store: Store, tmp_path: Path) -> None:
    assert tuple(CAPTIONS) == FIGURES
    for folder in ("first", "second"):
        write_figure(tmp_path / folder / "figure.svg", DRAWN["figure2"](plan, store))
        write_figure(tmp_path / folder / "figure.png", DRAWN["figure5"](plan, store))
        write_figure(tmp_path / folder / "figure.pdf", DRAWN["figure5"](plan, store))
        assert (tmp_path / folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    for ending in ("svg", "png", "pdf"):
        first, second = ((tmp_path / folder / f"figure.{ending}").read_bytes() for folder in ("first", "second"))
        assert first == second


def test_a_figure_of_no_known_kind_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"must end in \.svg, \.png, \.pdf"):
        write_figure(tmp_path / "figure.bmp", Figure())
    assert list(tmp_path.iterdir()) == []
