"""Recipes, files of settings and options come to one checked configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.files import FileError
from calibrant_lab.configuration import Configuration, Overrides, read_settings
from calibrant_lab.recipes import RECIPES, resolve


def options(**given: Any) -> Overrides:
    return Overrides(**given)


NONE = options()


def test_the_papers_settings_are_the_defaults() -> None:
    images = [RECIPES[name] for name in ("mnist", "cifar10", "cifar100")]
    assert {(c.epochs, c.batch_size, c.learning_rate, c.weight_decay) for c in images} == {(250, 512, 1e-3, 1e-2)}
    assert {(c.calibration_fraction, c.validation_fraction, c.image_size, c.flip) for c in images} == {
        (0.1, 0.1, 32, False)
    }
    assert [c.model for c in images] == ["lenet5", "resnet50-cifar", "resnet34-cifar"]
    assert {(c.crop_padding, c.mean, c.std) for c in images[1:]} == {(4, (0.5,) * 3, (0.5,) * 3)}
    imagenet = RECIPES["imagenet100"]
    assert (imagenet.model, imagenet.epochs, imagenet.weight_decay, imagenet.image_size) == ("resnet18", 90, 1e-4, 224)
    text = [RECIPES[name] for name in ("snli", "anli")]
    assert [(c.model, c.max_length) for c in text] == [("bert-base-uncased", 158), ("roberta-base", 128)]
    assert {(c.epochs, c.batch_size, c.learning_rate, c.weight_decay) for c in text} == {(15, 512, 1e-5, 1e-2)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'recipe = "mnist"\nobjective = "esd"\nbatch-size = 64\nweight = 2\nmean = [0.1]\n'),
        ("a.json", '{"recipe": "mnist", "objective": "esd", "batch_size": 64, "weight": 2, "mean": [0.1]}'),
    ],
)
def test_options_go_before_the_file_and_the_file_before_the_recipe(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = resolve(None, options(weight=3.0), tmp_path / name)
    assert (found.recipe, found.objective, found.batch_size, found.weight, found.mean) == (
        "mnist", "esd", 64, 3.0, (0.1,),
    )  # fmt: skip
    assert found.learning_rate == RECIPES["mnist"].learning_rate


def test_a_saved_configuration_comes_back(tmp_path: Path) -> None:
    first = resolve("cifar10", options(objective="mmce", bandwidth=0.2, flip=True, root=False), None)
    (tmp_path / "config.json").write_text(json.dumps(first.to_dict()))
    assert resolve(None, NONE, tmp_path / "config.json") == first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"weight": -1.0}, "weight must be a finite number of 0 or more"),
        ({"weight": float("nan")}, "weight must be a finite number"),
        ({"learning_rate": float("inf")}, "learning-rate must be a finite number above 0"),
        ({"calibration_fraction": 1.0}, "calibration-fraction must be between 0 and 1"),
        ({"calibration_batch_size": 0}, "calibration-batch-size must be at least 1"),
        ({"epochs": 1.5}, "epochs must be a whole number, got 1.5"),
        ({"epochs": True}, "epochs must be a whole number, got True"),
        ({"flip": 1}, "flip must be true or false"),
        ({"mean": []}, "mean must be a list of numbers"),
        ({"objective": "magic"}, "objective must be one of nll, esd"),
        ({"epoch": 3}, "there is no setting 'epoch'"),
        ({"seed": 2**63}, r"seed must be below 2\^63"),
        ({"mean": [float("nan")]}, "mean must be finite"),
        ({"std": [0.0]}, "std must be finite and above 0"),
        ({"max_length": 7}, "max-length must be at least 8"),
    ],
)
def test_a_bad_setting_says_which_and_what_it_should_be(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RECIPES["mnist"].replaced(settings)
    (tmp_path / "bad.json").write_text(json.dumps(settings))
    with pytest.raises(FileError, match=rf"bad\.json: .*{message}"):
        resolve("mnist", NONE, tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "recipe = ", "is not valid TOML"),
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "[1]", "must hold settings by name"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=rf"{name}: {message}"):
        read_settings(tmp_path / name)


def test_a_missing_file_and_a_missing_recipe(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.toml: cannot be read"):
        read_settings(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="give a --recipe: one of digits, mnist"):
        resolve(None, NONE, None)
    (tmp_path / "b.toml").write_text('recipe = ["mnist"]')
    with pytest.raises(ValueError, match=r"there is no recipe \['mnist'\]"):
        resolve(None, NONE, tmp_path / "b.toml")
    (tmp_path / "a.toml").write_text('recipe = "svhn"')
    with pytest.raises(ValueError, match="there is no recipe 'svhn'"):
        resolve(None, NONE, tmp_path / "a.toml")


def test_every_setting_is_explained() -> None:
    described = Configuration.__doc__ or ""
    assert all(f"        {name}: " in described for name in Configuration.__dataclass_fields__)


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("digits", {"image_size": 64}, "image-size is not a setting of the recipe digits"),
        ("cifar10", {"noise": 0.1}, "noise is not a setting of the recipe cifar10"),
        ("snli", {"crop_padding": 4}, "crop-padding is not a setting of the recipe snli"),
        ("imagenet100", {"max_length": 64}, "max-length is not a setting of the recipe imagenet100"),
        ("mnist", {"weight": 2.0}, "weight is not a setting of the objective nll"),
        ("mnist", {"method": "temperature", "weight": 2.0}, "weight is not a setting of the method temperature"),
        ("mnist", {"method": "head", "batchnorm": "freeze"}, "batchnorm is not a setting of the method head"),
        (
            "mnist",
            {"objective": "focal", "calibration_every": 2},
            "calibration-every is not a setting of the objective",
        ),
    ],
)
def test_settings_without_effect_are_refused(recipe: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(recipe, options(**settings), None)


def test_the_reduced_split_has_a_size() -> None:
    found = resolve("mnist", options(reduced_split=True, calibration_fraction=0.2), None)
    assert found.calibration_fraction == 0.2


def test_a_method_changes_the_identity_and_none_does_not() -> None:
    from calibrant_lab.trials.identity import identity

    mnist = Configuration("mnist", "lenet5")
    assert identity(mnist) == identity(mnist.replaced({"method": None})) == "376cd65c3816fe7a"
    assert identity(mnist.replaced({"method": "temperature"})) != identity(mnist)
