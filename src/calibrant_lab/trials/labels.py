"""What lists and lines call a trial: its objective, and the settings that tell it from others of its recipe."""

from typing import Any

from calibrant_lab.configuration import Configuration
from calibrant_lab.objectives import ABBREVIATIONS, ADDED
from calibrant_lab.recipes import RECIPES

SYMBOLS = {"weight": "λ", "bandwidth": "φ", "softness": "T"}  # of what is searched
_WRITTEN = {**SYMBOLS, "root": "raw", "batch_size": "batch"}
# Told beside the label, or by the folder.
ELSEWHERE = {"recipe", "model", "objective", "seed", "epochs"}


def label(configuration: Configuration) -> str:
    """The objective with its settings.

    Example:
        >>> label(RECIPES["mnist"].replaced({"objective": "mmce", "weight": 2.0, "bandwidth": 0.4}))
        'MMCE λ 2 φ 0.4'
        >>> label(RECIPES["mnist"].replaced({"objective": "nll", "reduced_split": True, "batch_size": 64}))
        'NLL batch 64 reduced split'
    """
    changes = changes_of(configuration)
    if configuration.objective in ADDED:
        changes["weight"] = configuration.weight
    order = [name for name in _WRITTEN if name in changes] + [name for name in changes if name not in _WRITTEN]
    shown = (_shown(name, changes[name]) for name in order if name not in ELSEWHERE)
    objective = configuration.objective
    return " ".join([objective.upper() if objective in ABBREVIATIONS else objective, *shown])


def changes_of(configuration: Configuration) -> dict[str, Any]:
    """The settings that are not the recipe's, as plain values."""
    recipe = RECIPES[configuration.recipe].to_dict()
    return {key: value for key, value in configuration.to_dict().items() if value != recipe.get(key)}


def _shown(name: str, value: Any) -> str:
    if name == "root":
        return _WRITTEN[name]  # the recipes have it
    written = _WRITTEN.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return written if value else f"no {written}"
    return f"{written} {value:g}" if isinstance(value, float) else f"{written} {value}"
