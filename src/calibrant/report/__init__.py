"""Reports: an audit of each model, a verdict in a sentence, figures, and one HTML page with all of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant.report.audit import Audit, Finding, Repair, audit
from calibrant.report.html import Made, render, write_report
from calibrant.report.packages import require_report_packages
from calibrant.report.repair import Recalibrated
from calibrant.report.tracking import log_mlflow, log_wandb
from calibrant.report.verdict import verdict

if TYPE_CHECKING:
    from calibrant.report.figures import cumulative_plot, reliability_diagram
    from calibrant.report.gap_figures import classwise_plot, groups_plot, time_plot

# Figures by the module that draws them.
FIGURES = {
    "classwise_plot": "gap_figures",
    "cumulative_plot": "figures",
    "groups_plot": "gap_figures",
    "reliability_diagram": "figures",
    "time_plot": "gap_figures",
}

__all__ = [
    "Audit",
    "Finding",
    "Made",
    "Recalibrated",
    "Repair",
    "audit",
    "classwise_plot",
    "cumulative_plot",
    "groups_plot",
    "log_mlflow",
    "log_wandb",
    "reliability_diagram",
    "render",
    "require_report_packages",
    "time_plot",
    "verdict",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # matplotlib is an extra, and a verdict does not need it.
    if name in FIGURES:
        try:
            module = import_module(f"calibrant.report.{FIGURES[name]}")
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            raise ModuleNotFoundError(f"figures need {package}: pip install 'calibrant[report]'") from error
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
