"""Reports: an audit of each model, a verdict in sentences, figures, and one HTML page with all of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant.report.audit import audit

if TYPE_CHECKING:
    from calibrant.report import figures as figures
    from calibrant.report.page import write_report
    from calibrant.report.tracking import log_mlflow, log_wandb

__all__ = ["audit", "log_mlflow", "log_wandb", "write_report"]

# Imported when they are used: matplotlib and jinja2 are an extra, and a verdict does not need them.
LATER = {"figures": "figures", "log_mlflow": "tracking", "log_wandb": "tracking", "write_report": "page"}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"calibrant.report.{LATER[name]}")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        what = "figures need" if name == "figures" else "a report needs"
        raise ModuleNotFoundError(f"{what} {package}: pip install 'calibrant[report]'", name=package) from error
    return module if name == LATER[name] else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
