"""A sweep: what to train, what to search, how to choose and which columns to show, as a file."""

import hashlib
import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from calibrant.files import naming
from calibrant_lab import plugins
from calibrant_lab.methods import method
from calibrant_lab.recipes import recipe
from calibrant_lab.scores import column, metric_of
from calibrant_lab.settings import Checked
from calibrant_lab.trials.configuration import Configuration, configure, read_settings

COLUMNS = ("accuracy", "ece", "ece+temperature", "accuracy+vector", "ece+vector")
FOLDER = "sweeps"


class Sweep(Checked):
    """A request for a table of trials.

    A sweep trains the NLL, with and without the held-out share of the data, and every method. For each method it
    searches the weight of the objective, then each searched option, and trains all seeds with the values it chose.
    """

    name: str = Field("sweep", pattern=r"^[\w.-]+$", description="Name of the table and its files.")
    recipe: str = Field(description="Name or import path of the recipe.")
    methods: tuple[str, ...] = Field(
        ("mmce", "sb-ece", "esd"), description="Names or import paths of the methods to compare with the NLL."
    )
    grids: dict[str, Annotated[tuple[float, ...], Field(min_length=1)]] = Field(
        {"weight": (1.0,)}, description="Values to search, by option, or by method.option for a single method."
    )
    seeds: int = Field(5, ge=1, description="Networks per row.")
    search_seeds: int = Field(1, ge=1, description="Networks per candidate of the search; their means are compared.")
    select: str = Field("ece", description="Validation score to minimise when choosing a candidate.")
    tolerance: float = Field(
        0.015, gt=0, le=1, description="Validation accuracy that a candidate may lose relative to the NLL, as a share."
    )
    columns: tuple[str, ...] = Field(
        COLUMNS, description="Test scores; +temperature and +vector: after scaling fitted on the validation set."
    )
    reduced_split: bool = Field(True, description="Add a row for the NLL trained without the held-out share.")
    batch_divisors: tuple[int, ...] = Field(
        (1,), min_length=1, description="Divisors of the recipe's batch size; every method is trained with each."
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings that differ from the recipe's.")
    profile: str | None = Field(None, description="Name of the profile that set the grids.")

    @field_validator("methods")
    @classmethod
    def _methods(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            method(one)
        return tuple(dict.fromkeys(plugins.absolute(one) for one in given if one != "nll"))

    @field_validator("columns", "select")
    @classmethod
    def _columns(cls, given: Any) -> Any:
        """Check columns before anything is trained."""
        if isinstance(given, str):
            metric = metric_of(given)
            if metric.more_is_better or metric.kind == "signed" or given in ("mean_confidence", "brier_uncertainty"):
                raise ValueError(f"a lower {given} is not better: choose a score such as ece, log_loss or brier")
        else:
            for one in given:
                column(one)  # raises if it is unknown
        return given

    @field_validator("recipe")
    @classmethod
    def _recipe(cls, given: str) -> str:
        recipe(given)
        return plugins.absolute(given)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.search_seeds > self.seeds:
            most = f"{self.seeds}, the number of seeds per row"
            raise ValueError(f"search-seeds must be from 1 to {most}, got {self.search_seeds}")
        with naming(Path("settings")):
            _ = self.base
        known = searched(self.methods)
        wrong = next((key for key in self.grids if key not in known), None)
        # Grids of a profile, and the default, may name options that only other methods search.
        if wrong and self.profile is None and self.grids != type(self).model_fields["grids"].default:
            near, names = plugins.meant(wrong, known), ", ".join(known) or "none"
            raise ValueError(f"grids: no method searches {wrong!r}{near}: choose from {names}")
        return self

    @property
    def base(self) -> Configuration:
        """Configuration that all trials share."""
        return configure(self.recipe, settings=self.settings)

    @property
    def subject(self) -> str:
        """Data and network, for titles.

        Example:
            >>> Sweep(recipe="mnist").subject
            'mnist (lenet5)'
        """
        model = getattr(self.base.settings, "model", None)
        return plugins.short(self.recipe) + (f" ({model})" if model else "")

    def grid(self, method_name: str, option: str) -> tuple[float, ...]:
        """The values of an option to try."""
        own = f"{plugins.short(method_name)}.{option}"
        return self.grids.get(own) or self.grids.get(option) or ()

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a sweep from a TOML file; paths in it are relative to its folder."""
        path = Path(path)
        with naming(path):
            found = read_settings(path)
            for key in ("recipe", "methods", "select", "columns"):
                given = found.get(key)
                if isinstance(given, str):
                    found[key] = plugins.absolute(given, path.parent)
                elif isinstance(given, list):
                    found[key] = [plugins.absolute(str(one), path.parent) for one in given]
            return cls.checked(found)

    def to_toml(self) -> str:
        """The sweep as TOML that :meth:`read` reads."""
        values = self.model_dump(mode="json", exclude_none=True)
        tables = {name: values.pop(name) for name in ("grids", "settings")}
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    @property
    def identity(self) -> str:
        """Eight digits that distinguish sweeps of the same name."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:8]

    @property
    def file_name(self) -> str:
        """Name of the sweep's files, without extension."""
        place = plugins.short(self.recipe).rpartition(":")[2]
        parts = [place, self.profile, f"{self.search_seeds}seeds" if self.search_seeds > 1 else None, self.name]
        return "-".join(part for part in parts if part)

    @property
    def record_name(self) -> str:
        """Name of the sweep's own file in a store."""
        return f"{self.file_name}-{self.identity}.toml"


def searched(methods: Iterable[str]) -> list[str]:
    """Names of grids: the options that methods search, for all of them or for one."""
    found = {plugins.short(name): one for name in methods if (one := method(name)).objective is not None}
    pairs = [(option, f"{name}.{option}") for name, one in found.items() for option in ("weight", *one.searched)]
    return list(dict.fromkeys(chain(*pairs)))
