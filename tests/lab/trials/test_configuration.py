"""Recipes, methods, files of settings and changes come to one checked configuration."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from calibrant.files import FileError
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.configuration import Configuration, configure, label, read_configuration
from tests.lab.stores import of, own_recipe


def test_the_papers_settings_are_the_defaults() -> None:
    found: dict[str, Any] = {name: configure(name).settings for name in RECIPES}
    images = [found[name] for name in ("mnist", "cifar10", "cifar100")]
    assert {(c.epochs, c.batch_size, c.learning_rate, c.weight_decay) for c in images} == {(250, 512, 1e-3, 1e-2)}
    assert {(c.calibration_fraction, c.validation_fraction, c.flip) for c in images} == {(0.1, 0.1, False)}
    assert [c.model for c in images] == ["lenet5", "resnet50-cifar", "resnet34-cifar"]
    assert {(c.crop_padding, c.mean, c.std) for c in images[1:]} == {(4, (0.5,) * 3, (0.5,) * 3)}
    assert found["mnist"].image_size == 32
    imagenet = found["imagenet100"]
    assert (imagenet.model, imagenet.epochs, imagenet.weight_decay, imagenet.image_size) == ("resnet18", 90, 1e-4, 224)
    text = [found[name] for name in ("snli", "anli")]
    assert [(c.model, c.max_length) for c in text] == [("bert-base-uncased", 158), ("roberta-base", 128)]
    assert {(c.epochs, c.batch_size, c.learning_rate, c.weight_decay) for c in text} == {(15, 512, 1e-5, 1e-2)}


def test_a_change_goes_where_it_belongs() -> None:
    found = configure("mnist", "mmce").replaced({"batch-size": "64", "weight": "2", "seed": 3, "mean": [0.1]})
    assert (found.settings.batch_size, found.option("weight"), found.seed) == (64, 2.0, 3)
    assert dict(found.replaced({"method": "esd"}).options) == {"weight": 1.0}  # of its own defaults
    assert found.replaced({"method": "mmce"}) == found
    assert found.settings.learning_rate == configure("mnist").settings.learning_rate
    values: Any = found.replaced({"epochs": "3", "flip": "true", "std": ["0.1"], "learning_rate": "1e-4"}).settings
    assert (values.epochs, values.flip, values.std, values.learning_rate) == (3, True, (0.1,), 1e-4)


@pytest.mark.parametrize(
    ("changes", "token"),
    [
        ({"epochs": 0}, "epochs.*got 0"),
        ({"epochs": "many"}, "epochs.*integer.*'many'"),
        ({"weight": float("nan")}, "weight.*finite"),
        ({"flip": "perhaps"}, "flip.*boolean"),
        ({"batchnorm": "thaw"}, "batchnorm.*'freeze'.*'thaw'"),
        ({"mean": "grey"}, "mean.*list.*'grey'"),
        ({"method": "magic"}, "'magic'"),
        ({"epoch": 3}, "'epoch'.* epochs"),
        ({"zzz": 3}, "'zzz': choose from"),
        ({"noise": 3}, "'noise'"),
        ({"bandwith": 2.0}, "'bandwith'.* bandwidth"),
        ({"seed": 2**63}, r"seed.*2\^63"),
        ({"seed": True}, "seed"),
    ],
)
def test_an_error_is_one_line_that_names_the_setting(changes: dict[str, Any], token: str) -> None:
    with pytest.raises(ValueError, match=rf"\A[^\n]*{token}[^\n]*\Z"):
        configure("mnist", "mmce").replaced(changes)


def test_a_configuration_is_read_from_the_file_of_a_trial_and_from_one_by_hand(tmp_path: Path) -> None:
    first = configure("cifar10", "mmce", options={"bandwidth": 0.2, "root": False}, settings={"flip": True}, seed=4)
    (tmp_path / "config.json").write_text(json.dumps(first.to_dict()))
    found = read_configuration(tmp_path / "config.json")
    assert found == first
    assert found.to_dict() == first.to_dict()
    settings = "method = 'esd'\nseed = 1\n[options]\nweight = 2\n[settings]\ncalibration-every = 2\n"
    (tmp_path / "small.toml").write_text(f"recipe = 'digits'\n{settings}")
    expected = configure("digits", "esd", options={"weight": 2.0}, settings={"calibration_every": 2}, seed=1)
    assert read_configuration(tmp_path / "small.toml") == expected
    (tmp_path / "small.toml").write_text('recipe = "digits"\n')
    assert read_configuration(tmp_path / "small.toml") == configure("digits")


@pytest.mark.parametrize(
    ("name", "text", "token"),
    [
        ("a.toml", None, "read"), ("a.toml", "recipe = ", "TOML"), ("a.json", "{", "JSON"),
        ("a.json", "[1]", "settings"), ("a.toml", "", "recipe"), ("a.toml", "epochs = 3", "'epochs'"),
        ("a.json", '{"recipe": "svhn"}', "'svhn'"),
    ],
)  # fmt: skip
def test_an_error_of_a_file_names_it(tmp_path: Path, name: str, text: str | None, token: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{re.escape(name)}.*{token}"):
        read_configuration(tmp_path / name)


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, str]:
    """Three files of one name, two of them with the same content."""
    for folder, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights.pt").write_bytes(content)
    return {name: str(tmp_path / name / "weights.pt") for name in "abc"}


@pytest.mark.parametrize("setting", ["initial_weights", "class_list"])
def test_a_file_counts_by_its_content(setting: str, weights: dict[str, str]) -> None:
    one, same, other = (configure("imagenet100", settings={setting: path}) for path in weights.values())
    assert one == same != other
    assert one.identity == same.identity != other.identity
    assert one.replaced({"epochs": 3}).files == one.files  # read once
    Path(weights["a"]).write_bytes(b"3")
    assert configure("imagenet100", settings={setting: weights["a"]}) != one
    assert one.replaced({setting: weights["a"]}) != one
    with pytest.raises(FileError, match=r"none\.pt.*" + setting.replace("_", "-")):
        configure("imagenet100", settings={setting: str(Path(weights["a"]).with_name("none.pt"))})


def test_a_recipe_from_outside_is_the_same_trial_wherever_its_file_is(tmp_path: Path) -> None:
    here, there = configure(own_recipe(tmp_path)), configure(own_recipe(tmp_path / "elsewhere"))
    assert here == there
    assert here.identity == there.identity
    assert here.replaced({"noise": 5}) != here
    assert label(here.replaced({"noise": 5})) == "NLL noise 5"


def test_a_configuration_reaches_another_process_unchanged(tmp_path: Path, weights: dict[str, str]) -> None:
    found = configure("mnist", "esd", settings={"initial_weights": weights["a"]})
    Path(weights["a"]).unlink()  # its digest goes with it
    for one in (found, configure(own_recipe(tmp_path), seed=5)):
        copy: Configuration = pickle.loads(pickle.dumps(one))  # noqa: S301
        assert copy == one
        assert copy.to_dict() == one.to_dict()


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        (of("nll"), "NLL"),
        (of("esd"), "ESD λ 1"),
        (of("esd-raw", weight=60.0), "ESD, raw λ 60"),
        (of("mmce", weight=0.6, bandwidth=0.4, batch_size=64), "MMCE λ 0.6 φ 0.4 batch 64"),
        (of("focal", gamma=2.0, learning_rate=0.01), "focal gamma 2 learning rate 0.01"),
        (of("nll", reduced_split=True, max_steps=7), "NLL max steps 7 reduced split"),
        (configure("imagenet100", settings={"flip": False}), "NLL no flip"),
    ],
)
def test_the_label_of_a_trial_has_what_differs_from_the_defaults(configuration: Configuration, text: str) -> None:
    assert label(configuration) == text
