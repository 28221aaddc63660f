"""What can be asked for by name on the command line, without loading what does it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from calibrant_lab.configuration import ObjectiveName, RecipeName

ProfileName = Literal["paper", "cpu", "quick"]
MethodName = ObjectiveName | Literal["esd-raw", "loop", "head"]
TableName = Literal["table1", "table2", "table3"]
FigureName = Literal["figure1", "figure2", "figure3", "figure4", "figure5", "figure6"]
Target = TableName | FigureName | Literal["all"]
Format = Literal["table", "markdown", "latex", "csv"]

TABLES: tuple[TableName, ...] = ("table1", "table2", "table3")
FIGURES: tuple[FigureName, ...] = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6")
PAPER: tuple[RecipeName, ...] = ("mnist", "cifar10", "cifar100", "imagenet100", "snli", "anli")
PUBLISHED: tuple[MethodName, ...] = ("mmce", "sb-ece", "esd")
SHIFTED: tuple[RecipeName, ...] = ("digits", "mnist", "cifar10", "cifar100")  # those with a Figure 6


@dataclass(frozen=True)
class Running:
    """Who runs the trials.

    Args:
        executor: local runs trials on this machine; ray on a cluster, or in Ray's way on this machine.
        parallel: Trials at a time on this machine; by default one for each GPU or core.
        ray_address: Of the cluster, such as auto; by default Ray is started on this machine.
        gpus_per_trial: On the cluster; may be a fraction.
        cpus_per_trial: On the cluster; also the threads of a trial.
        accelerator: cpu, gpu, mps or auto.
    """

    executor: Literal["local", "ray"] = "local"
    parallel: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    ray_address: str | None = None
    gpus_per_trial: Annotated[float, Parameter(validator=Number(gte=0))] = 0.0
    cpus_per_trial: Annotated[int, Parameter(validator=Number(gte=1))] = 1
    accelerator: str = "auto"


@dataclass(frozen=True)
class Shift:
    """Of figure6.

    Args:
        corrupted_dir: Folder with the official CIFAR-10-C or CIFAR-100-C; corruptions are generated without it.
        shift_images: Use the first so many test images only.
    """

    corrupted_dir: Path | None = None
    shift_images: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
