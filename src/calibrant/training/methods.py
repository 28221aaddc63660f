"""The three methods and their default settings."""

from typing import Any, Literal, NamedTuple

from calibrant.losses import checks
from calibrant.training.ignored import Loss

Method = Literal["temperature", "head", "published"]
BatchNormUse = Literal["freeze", "update"]


class Settings(NamedTuple):
    """A method with everything it needs; for the fields see :class:`calibrant.training.CalibratedLoss`."""

    method: Method
    objective: Loss | None
    weight: float
    every: int
    batchnorm: BatchNormUse


def checked_settings(
    method: Method, objective: Loss | None, weight: float | None, every: int | None, batchnorm: BatchNormUse | None,
    **of_objective: Any,
) -> Settings:  # fmt: skip
    """Check the given settings and fill in the defaults; ``of_objective`` are options of the default objective."""
    checks.check_choice("method", method, ("temperature", "head", "published"))
    if method == "temperature" and (objective is not None or weight is not None):
        raise ValueError("method 'temperature' has no objective and no weight: choose 'published' or 'head' for one")
    checks.check_objective(objective)
    weight = 1.0 if weight is None else weight
    checks.check_range("weight", weight, low=0)
    every = (4 if method == "temperature" else 1) if every is None else every
    checks.check_count("every", every)
    batchnorm = ("update" if method == "published" else "freeze") if batchnorm is None else batchnorm
    checks.check_choice("batchnorm", batchnorm, ("update", "freeze"))
    if objective is None and method == "published":
        from calibrant import ESDLoss

        objective = ESDLoss(**of_objective)
    return Settings(method, objective, float(weight), every, batchnorm)
