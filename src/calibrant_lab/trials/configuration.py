"""Everything that decides the result of a training run, and nothing else."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from calibrant.files import FileError, naming
from calibrant_lab import plugins
from calibrant_lab.methods import METHODS, SYMBOLS, Method, method
from calibrant_lab.recipes import recipe
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.settings import FilePath, Settings, no_such_setting

# How held-out samples are divided into batches, for the identity of trials that have them. Before, it was not part of
# the identity, and the last batch of a pass could be as small as one sample.
HELD_OUT = "batches of equal size"


@dataclass(frozen=True, eq=False)
class Configuration:
    """One training run. Equal configurations give identical networks on the CPU of one machine.

    Configurations are equal if their identities are, wherever the files they name are located. Use :func:`configure`
    to create one: it checks values and fills in defaults.

    Attributes:
        recipe: Name or import path of the recipe.
        method: Name or import path of the method.
        options: Options of the method, sorted by name.
        settings: Settings of the recipe.
        seed: Seed of split, initialisation, order and augmentation.
        files: Digest of the content of every file named by a setting.
    """

    recipe: str
    method: str
    options: tuple[tuple[str, Any], ...]
    settings: Settings
    seed: int = 0
    files: tuple[tuple[str, str], ...] = ()

    @property
    def of_recipe(self) -> Recipe:
        """The recipe itself."""
        return recipe(self.recipe)

    @property
    def of_method(self) -> Method:
        """The method itself."""
        return method(self.method)

    def option(self, name: str) -> Any:
        """The value of an option; None if the method does not have it."""
        return dict(self.options).get(name)

    def replaced(self, changes: Mapping[str, Any]) -> "Configuration":
        """Return a copy with some values changed: the seed, the method, its options, or settings.

        A new method starts with its own defaults.
        """
        given = {name.replace("-", "_"): value for name, value in changes.items()}
        name, seed = given.pop("method", self.method), given.pop("seed", self.seed)
        options = dict(self.options) if name == self.method else {}
        known, fields = method(name).defaults, type(self.settings).model_fields
        # Options of other methods are passed on too, for a specific error message.
        of_others = {option for one in METHODS.values() for option in one.defaults} - fields.keys()
        options |= {option: given.pop(option) for option in list(given) if option in known or option in of_others}
        if unknown := next((one for one in given if one not in fields), None):
            raise plugins.UnknownNameError(no_such_setting(unknown, [*known, *fields]))
        settings = self.settings.model_dump() | given
        files = {one: digest for one, digest in self.files if one not in given}
        return configure(self.recipe, name, options=options, settings=settings, seed=seed, files=files)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "recipe": self.recipe, "method": self.method, "seed": self.seed, "options": dict(self.options),
            "settings": self.settings.to_dict(), "files": dict(self.files),
        }  # fmt: skip

    @cached_property
    def identity(self) -> str:
        """Sixteen hexadecimal digits, the same for equal configurations on every machine.

        A setting that all recipes have counts only if it differs from its default, so that settings added later do not
        change the identity of existing trials. A file counts by its content, a user's recipe by the name of its file,
        not its location. ``HELD_OUT`` changes when a change of the held-out batches makes trials of another kind.

        Example:
            >>> configure("mnist").identity
            '8157fbfe6a7c45a4'
        """
        common = {name: field.default for name, field in Settings.model_fields.items()}.items()
        kept = {name: value for name, value in self.settings.to_dict().items() if (name, value) not in common}
        settings = kept | {name: digest for name, digest in self.files if name in kept}
        counted = [
            plugins.short(self.recipe), plugins.short(self.method), self.seed, _canonical(dict(self.options)),
            _canonical(settings), *([HELD_OUT] if self.of_method.holds_out else []),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process loads the recipe and the method itself, also if they are not built in.
        return from_dict, (self.to_dict(),)


def configure(
    recipe_name: str,
    method_name: str = "nll",
    *,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    files: Mapping[str, str] | None = None,
) -> Configuration:
    """Check a configuration and complete it with the defaults of its recipe and method.

    Args:
        recipe_name: Name or import path of the recipe.
        method_name: Name or import path of the method.
        options: Options of the method that differ from its defaults.
        settings: Settings that differ from those of the recipe.
        seed: Seed of split, initialisation, order and augmentation.
        files: Digests of the files named by settings, if known; otherwise they are computed.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2^63, got {seed!r}")
    checked = recipe(recipe_name).settings.checked(settings or {})
    chosen = method(method_name).checked(options or {}, plugins.short(method_name))
    digests = {}
    for name, field in type(checked).model_fields.items():
        path = getattr(checked, name)
        if path is not None and FilePath in (field.annotation, *get_args(field.annotation)):
            try:
                digests[name] = (files or {}).get(name) or plugins.digest_of(Path(path))
            except OSError as error:
                reason = f"cannot be read ({error.strerror}): give {name.replace('_', '-')} a file"
                raise FileError(Path(path), reason) from error
    return Configuration(
        plugins.absolute(recipe_name), plugins.absolute(method_name), tuple(sorted(chosen.items())), checked, seed,
        tuple(sorted(digests.items())),
    )  # fmt: skip


def from_dict(found: Mapping[str, Any]) -> Configuration:
    """Inverse of :meth:`Configuration.to_dict`."""
    return configure(
        found["recipe"], found["method"], options=found.get("options"), settings=found.get("settings"),
        seed=found.get("seed", 0), files=found.get("files"),
    )  # fmt: skip


def read_settings(path: Path) -> dict[str, Any]:
    """Values from a TOML or JSON file."""
    is_json = path.suffix.lower() == ".json"
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror}): give a .toml or .json file of settings") from error
    except ValueError as error:
        raise FileError(path, f"is not valid {'JSON' if is_json else 'TOML'}: {error}") from error
    if not isinstance(found, dict):
        raise FileError(path, "must contain settings by name")
    return {str(name).replace("-", "_"): value for name, value in found.items()}


def read_configuration(path: Path) -> Configuration:
    """Read a configuration from a file, such as ``config.json`` of a trial; only the recipe is required."""
    with naming(path):
        found = {"method": "nll", "options": {}, "settings": {}, "seed": 0} | read_settings(path)
        known = ("recipe", "method", "seed", "options", "settings", "files")
        unknown = next((name for name in found if name not in known), None)
        if unknown is not None:
            raise ValueError(f"{no_such_setting(unknown, known)}; settings of the recipe belong under [settings]")
        if not isinstance(found.get("recipe"), str):
            raise ValueError("must name a recipe")
        found |= {name: plugins.absolute(str(found[name]), path.parent) for name in ("recipe", "method")}
        return from_dict(found)


def label(configuration: Configuration) -> str:
    """Name of a trial in lists: the method, and options and settings that differ from their defaults.

    Example:
        >>> label(configure("mnist", "mmce", options={"weight": 2.0, "bandwidth": 0.4}))
        'MMCE λ 2 φ 0.4'
        >>> label(configure("mnist", settings={"reduced_split": True, "batch_size": 64}))
        'NLL batch 64 reduced split'
    """
    defaults = configuration.of_method.defaults
    options = {name: value for name, value in configuration.options if name == "weight" or value != defaults[name]}
    ordered = {name: options.pop(name) for name in SYMBOLS if name in options} | options
    settings = {name: value for name, value in changes_of(configuration).items() if name not in ("model", "epochs")}
    changed = [shown(name, value) for name, value in (ordered | settings).items()]
    return " ".join([configuration.of_method.label, *changed])


def changes_of(configuration: Configuration) -> dict[str, Any]:
    """The settings that differ from the recipe's, as plain values."""
    recipes = configuration.of_recipe.settings().to_dict()
    return {name: value for name, value in configuration.settings.to_dict().items() if value != recipes[name]}


def shown(name: str, value: Any) -> str:
    """An option or a setting with its value, as text."""
    written = SYMBOLS.get(name) or {"batch_size": "batch"}.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return written if value else f"no {written}"
    return f"{written} {value:g}" if isinstance(value, float) else f"{written} {value}"


def _canonical(value: Any) -> Any:
    """Write equal numbers in the same way: 1 as 1.0, and -0.0 as 0.0."""
    if isinstance(value, dict):
        return {name: _canonical(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(one) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return float(value) + 0.0
