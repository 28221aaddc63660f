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
from calibrant.files import FileError
from calibrant_lab.data.digits import load_digits
from calibrant_lab.data.images import ImageBatches, Images
from calibrant_lab.models import build_image_model
from calibrant_lab.scores import Predicted, scores_of
from calibrant_lab.shift import evaluation
from calibrant_lab.shift.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from calibrant_lab.shift.evaluation import evaluate_shifts, kept_shifts, shift_of
from calibrant_lab.shift.sources import Generated, Official, official, shifted_images
from calibrant_lab.sweeps.protocol import Plan, Row
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.fit import predict
from calibrant_lab.trials.store import WEIGHTS, Store, Trial
from tests.lab.stores import finished
from tests.lab.stores import predict as keep
from tests.lab.training import trained

DIGITS = configure("digits", settings={"epochs": 1})
CIFAR = configure("cifar10", settings={"model": "resnet20"})
FEW = ("fog", "contrast")
IMAGES = 30
LABELS = torch.arange(IMAGES) % 10


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store(tmp_path_factory.mktemp("runs"))
    trained(made, DIGITS)
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


def test_severity_0_is_the_trials_test_set(trial: Trial) -> None:
    clean = load_digits().test
    logits = evaluation._predicted(trial, evaluation._network(trial, clean), clean, 360).logits
    assert torch.allclose(logits, trial.predicted("test").logits, rtol=0, atol=1e-5)
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


def test_stored_scores_are_not_computed_again(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate_shifts([trial], few())[0]
    part = evaluate_shifts([trial], few(), limit=50)[0]
    assert (whole.images, whole.request.limit, part.images, part.request.limit) == (360, None, 50, 50)
    assert round(50 * part.corrupted["fog"][0].accuracy) == pytest.approx(50 * part.corrupted["fog"][0].accuracy)
    assert evaluate_shifts([trial], few(), limit=360)[0] == whole
    assert len(json.loads((trial.folder / evaluation.SHIFT).read_text())["results"]) == 2

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(evaluation, "_network", never)
    assert evaluate_shifts([trial], few())[0] == whole
    for source, limit in ((few(("fog",)), None), (few(), 60), (replace(few(), fingerprint="other"), None)):
        with pytest.raises(AssertionError, match="again"):
            evaluate_shifts([trial], source, limit=limit)


@pytest.mark.slow
def test_an_interruption_loses_one_corruption_at_most(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate_shifts([trial], few())[0]
    for damage in ("", "[]", '{"results": [{"request": {}}]}'):
        (trial.folder / evaluation.SHIFT).write_text(damage)
        assert evaluate_shifts([trial], few())[0] == whole
    (trial.folder / evaluation.SHIFT).unlink()
    made: list[str] = []
    plain = Generated.corrupted

    def interrupted(source: Generated, name: str, severity: int, count: int) -> Images:
        made.append(name)
        if len(made) == 8:
            raise KeyboardInterrupt
        return plain(source, name, severity, count)

    monkeypatch.setattr(Generated, "corrupted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_shifts([trial], few())
    assert evaluate_shifts([trial], few())[0] == whole
    assert made == ["fog"] * 5 + ["contrast"] * 3 + ["contrast"] * 5


def test_a_plan_is_evaluated_row_by_row_and_found_again(
    store: Store, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "shifted_images", lambda *_: few())
    plan = plan_of(Row("NLL", (DIGITS,)), Row("again", (DIGITS,)), Row("+ ESD", (DIGITS.replaced({"seed": 9}),)))
    assert kept_shifts(plan, store) == {"NLL": [], "again": [], "+ ESD": []}
    evaluate_shifts([trial], few(), limit=50)
    watched = Console(file=io.StringIO(), force_terminal=True, width=120)
    found = shift_of(plan, store, None, corrupted=None, limit=None, console=watched)
    whole = evaluate_shifts([trial], few())
    assert found == kept_shifts(plan, store) == {"NLL": whole, "again": whole, "+ ESD": []}
    path = trial.folder / evaluation.SHIFT
    content = path.read_text()
    # Another training of the same trial, and one that was interrupted.
    for changed in (content.replace("accuracy 0.", "accuracy 1."), content.replace('"fog":', '"frost":')):
        path.write_text(changed)
        assert kept_shifts(plan, store)["NLL"] == []


def test_one_trial_takes_all_generated_corruptions(trial: Trial) -> None:
    found = evaluate_shifts([trial], shifted_images(DIGITS, None, None), limit=20)[0]
    assert tuple(found.corrupted) == tuple(CORRUPTIONS)
    assert {len(scores) for scores in found.corrupted.values()} == {len(SEVERITIES)}


def test_a_recipe_of_ones_own_needs_the_settings_of_images(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from calibrant_lab import Recipe\nown = Recipe(lambda: None, lambda: None, shift=True)\n"
    )
    with pytest.raises(ValueError, match=r"shift=True.*mean"):
        shifted_images(configure(f"{tmp_path}/own.py:own"), None, None)


def make_cifar_trial(store: Store, labels: torch.Tensor) -> Trial:
    """An untrained network, and its predictions for black images."""
    torch.manual_seed(0)
    network = build_image_model("resnet20", classes=10, channels=3)
    black = Images(torch.zeros(len(labels), 3, 32, 32, dtype=torch.uint8), labels)
    test = predict(network, ImageBatches(black, 1000, mean=(0.5,), std=(0.5,)))
    noisy = Predicted(torch.randn(200, 10), torch.randint(10, (200,)))
    trial = finished(store, CIFAR, 0.1, 0.1, temperature=math.nan, test=scores_of(noisy, test))
    torch.save(network.state_dict(), trial.folder / WEIGHTS)
    keep(trial, "validation", *noisy)
    keep(trial, "test", *test)
    return trial


def make_published(folder: Path, labels: torch.Tensor, names: tuple[str, ...] = ("fog", "frost")) -> Path:
    """CIFAR-10-C in small: the value of a pixel is the number of its severity and image."""
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(labels.numpy(), 5).astype(np.uint8))
    values = np.repeat(np.arange(5 * len(labels), dtype=np.uint8), 32 * 32 * 3).reshape(-1, 32, 32, 3)
    for name in names:
        np.save(folder / f"{name}.npy", values)
    return folder


def test_published_files_are_read_by_severity(tmp_path: Path) -> None:
    folder = make_published(tmp_path / "CIFAR-10-C", LABELS)
    for given in (folder, tmp_path):
        found = official(given, "CIFAR-10-C", images=IMAGES)
        assert found.corruptions == ("fog", "frost")
        pixels, target = found.corrupted("frost", 3, 4)
        assert (tuple(pixels.shape), pixels[:, 0, 0, 0].tolist()) == ((4, 3, 32, 32), [60, 61, 62, 63])
        assert target.tolist() == [0, 1, 2, 3]
    trial = make_cifar_trial(Store(tmp_path / "runs"), LABELS)
    result = evaluate_shifts([trial], found, limit=20)[0]
    assert (result.request.source, result.images, list(result.corrupted)) == ("official", 20, ["fog", "frost"])
    assert math.isnan(result.corrupted["fog"][0].ece_temperature)
    assert str(evaluate_shifts([trial], found, limit=20)[0]) == str(result)  # NaN is not equal to itself


def test_errors_of_trials(trial: Trial, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="limit"):
        evaluate_shifts([trial], few(), limit=0)
    with pytest.raises(FileError, match="other images"):
        evaluate_shifts([trial], Generated(DIGITS.replaced({"noise": 0.9}), None, corruptions=FEW))
    assert not (trial.folder / evaluation.SHIFT).exists()
    cifar = make_cifar_trial(Store(tmp_path / "runs"), LABELS)
    same, other = (
        official(make_published(tmp_path / name, labels), "CIFAR-10-C", images=IMAGES)
        for name, labels in (("same", LABELS), ("other", LABELS.flip(0)))
    )
    assert other.fingerprint != same.fingerprint
    with pytest.raises(FileError, match="other images"):
        evaluate_shifts([cifar], other)
    (cifar.folder / WEIGHTS).unlink()
    with pytest.raises(FileError, match=r"model\.pt"):
        evaluate_shifts([cifar], same)


@pytest.mark.parametrize(
    ("name", "content", "token"),
    [
        ("fog", np.zeros((149, 32, 32, 3), np.uint8), r"\(150, 32, 32, 3\).*149"),
        ("labels", np.arange(150), "repeat"),
        ("labels", np.zeros(150), "whole numbers"),
        ("fog", np.array([{}]), "array"),
    ],
)
def test_errors_of_published_files(tmp_path: Path, name: str, content: np.ndarray, token: str) -> None:
    folder = make_published(tmp_path / "c", LABELS)
    np.save(folder / f"{name}.npy", content, allow_pickle=True)
    with pytest.raises(FileError, match=f"{name}.npy.*{token}"):
        official(folder, "CIFAR-10-C", images=IMAGES)


def test_published_images_go_before_generated_ones(tmp_path: Path) -> None:
    assert isinstance(shifted_images(DIGITS, None, None), Generated)
    assert isinstance(shifted_images(CIFAR, tmp_path, None), Generated)
    with pytest.raises(FileError, match=r"labels\.npy.*https"):
        shifted_images(CIFAR, None, tmp_path)
    folder = make_published(tmp_path / "CIFAR-10-C", torch.arange(10_000) % 10, names=())
    with pytest.raises(FileError, match=r"gaussian_noise\.npy"):
        shifted_images(CIFAR, tmp_path, None)
    np.lib.format.open_memmap(folder / "snow.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    found = shifted_images(CIFAR, tmp_path, None)
    assert isinstance(found, Official)
    assert found.corruptions == ("snow",)
    for recipe, folder_of_corrupted in (("mnist", tmp_path), ("snli", None)):
        with pytest.raises(ValueError, match=recipe):
            shifted_images(configure(recipe), None, folder_of_corrupted)
