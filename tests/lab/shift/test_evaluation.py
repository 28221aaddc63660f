"""Trials under distribution shift: the right images through the right network, computed once."""

import io
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import calibrant as cal
from calibrant.files import FileError, write_json, write_predictions
from calibrant_lab.data.digits import load_digits
from calibrant_lab.data.images import ImageBatches, Images
from calibrant_lab.models import build_image_model
from calibrant_lab.paper.figures.parts import NotRunError
from calibrant_lab.paper.figures.shift import figure6
from calibrant_lab.scores import Predicted, scores_of
from calibrant_lab.shift import evaluation
from calibrant_lab.shift.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from calibrant_lab.shift.evaluation import ShiftResult, evaluate_shifts, kept_shifts, shift_of
from calibrant_lab.shift.sources import Generated, Official, official, shifted_images
from calibrant_lab.sweeps.protocol import Plan, Row
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.fit import predict
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import CONFIGURATION, WEIGHTS, Cost, Result, Store, Trial, write_result

DIGITS = configure("digits", settings={"epochs": 1})
CIFAR = configure("cifar10", settings={"model": "resnet20"})
FEW = ("fog", "contrast")
IMAGES = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store(tmp_path_factory.mktemp("runs"))
    assert run_trial(made, DIGITS, None, "cpu") == "done", made.trial(DIGITS).failure()
    return made


@pytest.fixture
def trial(store: Store) -> Trial:
    """Trained, and not yet under any shift."""
    found = store.trial(DIGITS)
    (found.folder / evaluation.SHIFT).unlink(missing_ok=True)
    return found


def plan_of(*rows: Row) -> Plan:
    return Plan(Sweep(recipe="digits"), DIGITS, rows)


def few(names: tuple[str, ...] = FEW) -> Generated:
    return Generated(DIGITS, None, corruptions=names)


def test_severity_0_is_what_the_trial_was_tested_with(trial: Trial) -> None:
    clean = load_digits().test
    network = evaluation._network(trial, clean)
    assert torch.allclose(
        evaluation._predicted(trial, network, clean, 360).logits, trial.predicted("test").logits, rtol=0, atol=1e-5
    )
    found, kept = evaluate_shifts([trial], few(("contrast",)))[0], trial.result()
    expected = [kept.test[column] for column in ("accuracy", "ece", "ece+temperature")]
    assert [*asdict(found.clean).values()] == pytest.approx(expected, abs=1e-6)
    assert found.temperature == kept.validation["temperature"]


def test_scores_are_of_the_corrupted_images(trial: Trial) -> None:
    found = evaluate_shifts([trial], few())[0]
    assert list(found.corrupted) == list(FEW)
    test = load_digits().test
    worse = Images(corrupt(test.pixels, "contrast", 4), test.labels)
    predicted = predict(evaluation._network(trial, test), ImageBatches(worse, 1000))
    scores = cal.metrics.evaluate(logits=predicted.logits, target=predicted.target, bins=20)
    cooled = cal.metrics.evaluate(logits=predicted.logits / found.temperature, target=predicted.target, bins=20)
    expected = (scores.accuracy, scores.ece, cooled.ece)
    assert tuple(asdict(found.corrupted["contrast"][3]).values()) == pytest.approx(expected, abs=1e-6)
    assert found.by_severity("ece")[4] == [found.corrupted[name][3].ece for name in FEW]
    assert found.by_severity("accuracy")[0] == [found.clean.accuracy]


def test_what_is_there_is_not_computed_again(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate_shifts([trial], few())[0]
    assert json.loads((trial.folder / evaluation.SHIFT).read_text())["results"][0]["request"]["source"] == "generated"

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(evaluation, "_network", never)
    assert evaluate_shifts([trial], few())[0] == first
    for source, limit in ((few(("fog",)), None), (few(), 50), (replace(few(), fingerprint="other"), None)):
        with pytest.raises(AssertionError, match="computed again"):
            evaluate_shifts([trial], source, limit=limit)


def test_a_cheaper_run_says_so_and_takes_nothing_away(trial: Trial) -> None:
    whole = evaluate_shifts([trial], few())[0]
    part = evaluate_shifts([trial], few(), limit=50)[0]
    assert (whole.images, whole.request.limit, part.images, part.request.limit) == (360, None, 50, 50)
    assert round(50 * part.corrupted["fog"][0].accuracy) == pytest.approx(50 * part.corrupted["fog"][0].accuracy)
    assert evaluate_shifts([trial], few(), limit=360)[0] == whole
    assert len(json.loads((trial.folder / evaluation.SHIFT).read_text())["results"]) == 2
    with pytest.raises(ValueError, match="limit must be at least 1 image, got 0"):
        evaluate_shifts([trial], few(), limit=0)


@pytest.mark.slow
def test_an_interruption_loses_one_corruption_at_most(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate_shifts([trial], few())[0]
    (trial.folder / evaluation.SHIFT).unlink()
    made: list[str] = []

    def interrupted(source: Generated, name: str, severity: int, count: int) -> Images:
        made.append(name)
        if name == "contrast" and made.count("contrast") == 3:
            raise KeyboardInterrupt
        return Images(corrupt(source.clean.pixels[:count], name, severity), source.clean.labels[:count])

    monkeypatch.setattr(Generated, "corrupted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_shifts([trial], few())
    assert evaluate_shifts([trial], few())[0] == whole
    assert made == ["fog"] * 5 + ["contrast"] * 3 + ["contrast"] * 5


@pytest.mark.slow
def test_a_damaged_file_is_made_anew(trial: Trial) -> None:
    whole = evaluate_shifts([trial], few(("fog",)))[0]
    for damage in ("", "[]", '{"results": [{"request": {}}]}'):
        (trial.folder / evaluation.SHIFT).write_text(damage)
        assert evaluate_shifts([trial], few(("fog",)))[0] == whole


def test_other_data_than_the_trials_are_refused(trial: Trial) -> None:
    noisier = Generated(DIGITS.replaced({"noise": 0.9}), None, corruptions=FEW)
    with pytest.raises(FileError, match="was tested on other images"):
        evaluate_shifts([trial], noisier)
    assert not (trial.folder / evaluation.SHIFT).exists()


def test_a_plan_is_evaluated_row_by_row(store: Store, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "shifted_images", lambda *_: few(("fog",)))
    plan = plan_of(Row("NLL", (DIGITS,)), Row("again", (DIGITS,)), Row("+ ESD", (DIGITS.replaced({"seed": 9}),)))
    watched = Console(file=io.StringIO(), force_terminal=True, width=120)
    found = shift_of(plan, store, None, corrupted=None, limit=None, console=watched)
    assert [len(results) for results in found.values()] == [1, 1, 0]
    assert found["NLL"] == found["again"] == evaluate_shifts([trial], few(("fog",)))


def test_what_was_kept_is_found_without_networks_and_images(store: Store, trial: Trial) -> None:
    plan = plan_of(Row("NLL", (DIGITS,)), Row("+ ESD", (DIGITS.replaced({"seed": 9}),)))
    assert kept_shifts(plan, store) == {"NLL": [], "+ ESD": []}
    evaluate_shifts([trial], few(), limit=50)
    whole = evaluate_shifts([trial], few())[0]
    assert kept_shifts(plan, store) == {"NLL": [whole], "+ ESD": []}
    path = trial.folder / evaluation.SHIFT
    kept = path.read_text()
    # Another training of the same trial, and one that was interrupted.
    path.write_text(kept.replace("accuracy 0.", "accuracy 1."))
    assert kept_shifts(plan, store)["NLL"] == []
    content = json.loads(kept)
    for result in content["results"]:
        del result["corrupted"]["fog"]
    path.write_text(json.dumps(content))
    assert kept_shifts(plan, store)["NLL"] == []


def test_without_weights_there_is_a_word_of_advice(tmp_path: Path) -> None:
    trial = make_cifar_trial(Store(tmp_path / "runs"), torch.zeros(IMAGES, 3, 32, 32), torch.arange(IMAGES) % 10)
    (trial.folder / WEIGHTS).unlink()
    with pytest.raises(FileError, match=r"model\.pt: does not exist, and new images need the network"):
        evaluate_shifts(
            [trial], official(make_published(tmp_path / "c", torch.arange(IMAGES) % 10), "CIFAR-10-C", images=30)
        )


OWN = """
from torch import nn
from calibrant_lab import Recipe
from calibrant_lab.data.digits import load_digits
from calibrant_lab.recipes.images import ImageSettings, in_memory

load = lambda settings: in_memory(load_digits(), settings)
build = lambda data: nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, data.classes))
mine = Recipe(load, build, settings=ImageSettings, shift=True, epochs=1)
plain = Recipe(load, build, shift=True)
"""


def test_a_recipe_of_ones_own_builds_its_own_network(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    mine, store = configure(f"{tmp_path}/own.py:mine"), Store(tmp_path / "runs")
    assert run_trial(store, mine, None, "cpu") == "done", store.trial(mine).failure()
    found = evaluate_shifts([store.trial(mine)], Generated(mine, None, corruptions=("fog",)), limit=50)[0]
    assert found.corrupted["fog"][4].accuracy < found.clean.accuracy
    with pytest.raises(ValueError, match="needs a recipe of images in memory with shift=True and the settings mean"):
        shifted_images(configure(f"{tmp_path}/own.py:plain"), None, None)


def make_cifar_trial(store: Store, pixels: torch.Tensor, labels: torch.Tensor) -> Trial:
    """A network that was never trained, and what it says about some clean images."""
    torch.manual_seed(0)
    network = build_image_model("resnet20", classes=10, channels=3)
    trial = store.trial(CIFAR)
    trial.folder.mkdir(parents=True)
    write_json(trial.folder / CONFIGURATION, CIFAR.to_dict())
    torch.save(network.state_dict(), trial.folder / WEIGHTS)
    batches = ImageBatches(Images(pixels.to(torch.uint8), labels), 1000, mean=(0.5,), std=(0.5,))
    test = predict(network, batches)
    noisy = Predicted(torch.randn(200, 10), torch.randint(10, (200,)))
    for part, predicted in (("validation", noisy), ("test", test)):
        write_predictions(
            trial.folder / f"{part}.npz", predicted.logits.numpy(), predicted.target.numpy(), kind="logits"
        )
    validation = {"accuracy": 0.1, "ece": 0.1, "nll": 2.3, "temperature": math.nan}
    write_result(trial.folder, Result(CIFAR, validation, scores_of(noisy, test), Cost(1.0, 1.0, 1, 1), {}))
    return trial


def make_published(folder: Path, labels: torch.Tensor, names: tuple[str, ...] = ("fog", "frost")) -> Path:
    """CIFAR-10-C in small: the value of a pixel tells its severity and image."""
    folder.mkdir()
    count = len(labels)
    np.save(folder / "labels.npy", np.tile(labels.numpy(), 5).astype(np.uint8))
    values = np.repeat(np.arange(5 * count, dtype=np.uint8), 32 * 32 * 3).reshape(-1, 32, 32, 3)
    for name in names:
        np.save(folder / f"{name}.npy", values)
    return folder


def test_published_files_are_read_by_severity(tmp_path: Path) -> None:
    labels = torch.arange(IMAGES) % 10
    folder = make_published(tmp_path / "CIFAR-10-C", labels)
    for given in (folder, tmp_path):
        found = official(given, "CIFAR-10-C", images=IMAGES)
        assert found.corruptions == ("fog", "frost")
        pixels, target = found.corrupted("frost", 3, 4)
        assert (tuple(pixels.shape), pixels[:, 0, 0, 0].tolist()) == ((4, 3, 32, 32), [60, 61, 62, 63])
        assert target.tolist() == [0, 1, 2, 3]
    trial = make_cifar_trial(Store(tmp_path / "runs"), torch.zeros(IMAGES, 3, 32, 32), labels)
    result = evaluate_shifts([trial], found, limit=20)[0]
    assert (result.request.source, result.images, list(result.corrupted)) == ("official", 20, ["fog", "frost"])
    assert math.isnan(result.corrupted["fog"][0].ece_temperature)
    again = evaluate_shifts([trial], found, limit=20)[0]
    assert str(again) == str(result)  # NaN is not equal to itself
    other = official(make_published(tmp_path / "other", labels.flip(0)), "CIFAR-10-C", images=IMAGES)
    assert other.fingerprint != found.fingerprint
    with pytest.raises(FileError, match="was tested on other images"):
        evaluate_shifts([trial], other)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("fog", np.zeros((149, 32, 32, 3), np.uint8), r"must be uint8 of shape \(150, 32, 32, 3\), got uint8 of .*149"),
        ("fog", np.zeros((150, 32, 32, 3), np.float32), r"must be uint8 .* got float32"),
        ("labels", np.zeros(30, np.uint8), r"must be whole numbers of shape \(150,\), got uint8 of shape \(30,\)"),
        ("labels", np.arange(150), "must repeat the labels"),
        ("labels", np.zeros(150), "must be whole numbers"),
        ("fog", np.array([{}]), "cannot be read as an array"),
    ],
)
def test_files_that_are_not_the_published_ones_are_refused(
    tmp_path: Path, name: str, content: np.ndarray, message: str
) -> None:
    folder = make_published(tmp_path / "c", torch.arange(IMAGES) % 10)
    np.save(folder / f"{name}.npy", content, allow_pickle=True)
    with pytest.raises(FileError, match=f"{name}.npy.*{message}"):
        official(folder, "CIFAR-10-C", images=IMAGES)


def test_where_the_images_come_from(tmp_path: Path) -> None:
    assert isinstance(shifted_images(DIGITS, None, None), Generated)
    assert isinstance(shifted_images(CIFAR, tmp_path, None), Generated)
    with pytest.raises(
        FileError, match=r"has no labels\.npy, nor does its subfolder CIFAR-10-C: download CIFAR-10-C from https"
    ):
        shifted_images(CIFAR, None, tmp_path)
    folder = make_published(tmp_path / "CIFAR-10-C", torch.arange(10_000) % 10, names=())
    with pytest.raises(FileError, match=r"has none of gaussian_noise\.npy"):
        shifted_images(CIFAR, tmp_path, None)
    np.lib.format.open_memmap(folder / "snow.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    found = shifted_images(CIFAR, tmp_path, None)
    assert isinstance(found, Official)
    assert found.corruptions == ("snow",)
    with pytest.raises(ValueError, match="published corruptions exist for CIFAR-10-C and CIFAR-100-C, not for mnist"):
        shifted_images(configure("mnist"), None, tmp_path)
    with pytest.raises(ValueError, match="images of snli cannot be corrupted: figure6 needs a recipe of images"):
        shifted_images(configure("snli"), None, None)


def test_one_trial_takes_all_generated_corruptions(trial: Trial) -> None:
    found = evaluate_shifts([trial], shifted_images(DIGITS, None, None), limit=20)[0]
    assert tuple(found.corrupted) == tuple(CORRUPTIONS)
    assert {len(scores) for scores in found.corrupted.values()} == {len(SEVERITIES)}


def made_result(accuracy: float, limit: int | None = None) -> ShiftResult:
    """Accuracy falls by a point a severity; in fog by twice as much."""

    def score(loss: float) -> evaluation.ShiftScore:
        return evaluation.ShiftScore(accuracy - loss, 0.1 + loss, 0.05 + loss)

    worse = {name: tuple(score(k * s / 100) for s in SEVERITIES) for k, name in ((1, "contrast"), (2, "fog"))}
    request = evaluation.ShiftRequest("generated", ("contrast", "fog"), limit, "")
    return ShiftResult(request, limit or 1000, 1.5, score(0.0), worse)


def test_the_figure_shows_the_mean_over_seeds_and_corruptions() -> None:
    figure = figure6({"NLL": [made_result(0.9), made_result(0.8)], "+ ESD": [made_result(0.7)], "+ MMCE": []})
    accuracy, ece, cooled = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == ["accuracy", "ECE, as trained", "ECE, with temperature"]
    assert accuracy.lines[0].get_ydata() == pytest.approx([0.85 - 0.015 * s for s in range(6)])
    assert cooled.lines[2].get_ydata() == pytest.approx([0.05 + 0.015 * s for s in range(6)])
    bars = accuracy.collections[0].get_segments()  # type: ignore[attr-defined]
    assert bars[5][:, 1] == pytest.approx([0.85 - 0.0875, 0.85 - 0.0625])
    assert ece.get_ylim() == cooled.get_ylim()
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert all(low <= value <= high for line in axes.lines for value in np.asarray(line.get_ydata()))
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [
        "NLL", "ESD", "middle half of the corruptions", "± standard deviation of 2 seeds",
    ]  # fmt: skip
    assert legend.get_title().get_text() == "Distribution shift: 2 generated corruptions"


def test_the_figure_says_when_images_were_left_out_and_refuses_to_mix() -> None:
    few_images = figure6({"NLL": [made_result(0.9, limit=50)]})
    assert few_images.legends[0].get_title().get_text().endswith("corruptions, the first 50 test images only")
    with pytest.raises(ValueError, match="different images or corruptions"):
        figure6({"NLL": [made_result(0.9)], "+ ESD": [made_result(0.9, limit=50)]})
    with pytest.raises(NotRunError, match="needs finished trials"):
        figure6({"NLL": []})
