"""Settings are checked once, by pydantic, and what is wrong is said in one line."""

import re
from typing import Any

import pytest

from calibrant_lab.recipes import RECIPES
from calibrant_lab.settings import Settings
from calibrant_lab.trials.configuration import configure

MNIST = RECIPES["mnist"].settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs should be greater than or equal to 1, got 0"),
        ({"epochs": "many"}, "epochs should be a valid integer, unable to parse string as an integer, got 'many'"),
        ({"epochs": 1.5}, "epochs should be a valid integer, got a number with a fractional part, got 1.5"),
        ({"learning_rate": float("inf")}, "learning-rate should be a finite number, got inf"),
        ({"learning_rate": float("nan")}, "learning-rate should be"),
        ({"calibration_fraction": 1.0}, "calibration-fraction should be less than 1, got 1.0"),
        ({"calibration_batch_size": 0}, "calibration-batch-size should be greater than or equal to 1"),
        ({"flip": "perhaps"}, "flip should be a valid boolean"),
        ({"std": [0.0]}, "std should be greater than 0, got 0.0"),
        ({"mean": "grey"}, "mean should be a list, got 'grey'"),
        ({"batchnorm": "thaw"}, "batchnorm should be 'update' or 'freeze', got 'thaw'"),
        ({"precision": "8"}, "precision should be '32', 'bf16-mixed' or '16-mixed', got '8'"),
        ({"epoch": 3}, "unknown setting 'epoch', did you mean epochs: choose from epochs, max-steps"),
        ({"learningrate": 3}, "unknown setting 'learningrate', did you mean learning-rate"),
        ({"zzz": 3}, "unknown setting 'zzz': choose from"),
    ],
)
def test_a_wrong_name_type_or_value_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"\A{re.escape(message)}[^\n]*\Z"):
        MNIST.checked(settings)


def test_texts_of_the_command_line_become_values() -> None:
    found: Any = MNIST.checked({"epochs": "3", "flip": "true", "mean": ["0.1", "0.2"], "learning_rate": "1e-4"})
    assert (found.epochs, found.flip, found.mean, found.learning_rate) == (3, True, (0.1, 0.2), 1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_is_described(name: str) -> None:
    for setting, field in RECIPES[name].settings.model_fields.items():
        assert field.description, setting


@pytest.mark.parametrize(
    ("recipe", "method", "changes", "message"),
    [
        ("digits", "nll", {"image_size": 64}, "unknown setting 'image-size'"),
        ("snli", "nll", {"crop_padding": 4}, "unknown setting 'crop-padding'"),
        ("mnist", "nll", {"weight": 2.0}, "weight is not an option of nll, which has none"),
        ("mnist", "esd", {"bandwidth": 2.0}, "bandwidth is not an option of esd"),
        ("mnist", "mmce", {"bandwith": 2.0}, "unknown setting 'bandwith', did you mean bandwidth"),
        ("mnist", "esd", {"weigth": 2.0}, "unknown setting 'weigth', did you mean weight:"),
    ],
)
def test_what_a_recipe_or_a_method_does_not_have_is_refused(
    recipe: str, method: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        configure(recipe, method).replaced(changes)


def test_every_recipe_has_the_common_settings() -> None:
    assert all(issubclass(recipe.settings, Settings) for recipe in RECIPES.values())
