"""Settings of a training run, checked by pydantic; recipes add their own."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibrant_lab.plugins import UnknownNameError, meant

# A file that is identified by its content, not its name.
FilePath = Annotated[str, "content"]


class Checked(BaseModel):
    """Named values that are checked when they are given."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """Create an object from plain values or strings; errors are one line."""
        named = {name.replace("-", "_"): value for name, value in values.items()}
        if len(named) < len(values):
            twice = next(name for name in values if "_" in name and name.replace("_", "-") in values)
            raise ValueError(f"{twice.replace('_', '-')} is given twice, with hyphens and with underscores: remove one")
        try:
            return cls.model_validate(named)
        except ValidationError as error:
            # An unknown setting may come from a later version.
            kind = UnknownNameError if error.errors()[0]["type"] == "extra_forbidden" else ValueError
            raise kind(_one_line(error, cls.model_fields)) from error


class Settings(Checked):
    """Settings of every training run, whatever its data, network and method."""

    epochs: int = Field(250, ge=1, description="Passes over the training data.")
    max_steps: int | None = Field(None, ge=1, description="Stop after this many steps, whatever the epochs.")
    batch_size: int = Field(512, ge=1, description="Samples in a batch of the training loss.")
    learning_rate: float = Field(1e-3, gt=0, description="Learning rate of AdamW.")
    weight_decay: float = Field(1e-2, ge=0, description="Weight decay of AdamW.")
    validation_fraction: float = Field(
        0.1, gt=0, lt=1,
        description="Share of the training data used for validation, if the data have no validation set.",
    )  # fmt: skip
    calibration_fraction: float = Field(
        0.1, gt=0, lt=1, description="Share of the remaining training data held out for calibration."
    )
    calibration_batch_size: int | None = Field(
        None, ge=1, description="Samples in a held-out batch; by default as many as in a training batch."
    )
    calibration_every: int = Field(1, ge=1, description="Use a held-out batch only every k-th step.")
    reduced_split: bool = Field(
        False, description="Set the held-out share aside even if the method does not use it, for a fair comparison."
    )
    batchnorm: Literal["update", "freeze"] = Field(
        "update", description="Whether held-out batches update BatchNorm's running statistics (as published) or not."
    )
    precision: Literal["32", "bf16-mixed", "16-mixed"] = Field(
        "32", description="Numerical precision of training, as in Lightning."
    )
    compile: bool = Field(False, description="Compile the network with torch.compile.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self.model_dump(mode="json")


def no_such_setting(name: str, known: Iterable[str]) -> str:
    """Error message for an unknown name."""
    name, names = name.replace("_", "-"), [one.replace("_", "-") for one in known]
    return f"unknown setting {name!r}{meant(name, names)}: choose from {', '.join(names)}"


def _one_line(error: ValidationError, known: Iterable[str]) -> str:
    """The first problem of a failed validation, as one line for the command line."""
    problem = error.errors()[0]
    place = problem["loc"][: 2 if "grids" in problem["loc"] else 1]  # the name of a field, or of a grid
    name = ".".join(map(str, place)).replace("_", "-")
    if problem["type"] == "extra_forbidden":
        return no_such_setting(name, known)
    if problem["type"] == "missing":
        return f"{name} is required"
    message = problem["msg"].removeprefix("Value error, ").partition(" after validation")[0]
    message = message.replace("a valid tuple", "a list").replace("Tuple", "Input")
    message = message.replace("Input", name) if message.startswith("Input") else f"{name}: {message}".removeprefix(": ")
    return f"{message}, got {problem['input']!r}" if problem["type"] != "value_error" else message
