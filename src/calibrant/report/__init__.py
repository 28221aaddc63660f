"""Reports: an audit of each model, a verdict in a sentence, figures, and one HTML page with all of them."""

from typing import TYPE_CHECKING, Any

from calibrant.report.audit import Audit, Finding, Repair, audit
from calibrant.report.html import render, write_report
from calibrant.report.packages import require_report_packages
from calibrant.report.repair import Recalibrated
from calibrant.report.tracking import log_mlflow, log_wandb
from calibrant.report.verdict import verdict

if TYPE_CHECKING:
    from calibrant.report.figures import classwise_plot, cumulative_plot, reliability_diagram

FIGURES = ("classwise_plot", "cumulative_plot", "reliability_diagram")

__all__ = [
    "Audit",
    "Finding",
    "Recalibrated",
    "Repair",
    "audit",
    "classwise_plot",
    "cumulative_plot",
    "log_mlflow",
    "log_wandb",
    "reliability_diagram",
    "render",
    "require_report_packages",
    "verdict",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # matplotlib is an extra, and a verdict does not need it.
    if name in FIGURES:
        try:
            from calibrant.report import figures
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"figures need {error.name}: pip install 'calibrant[report]'") from error
        return getattr(figures, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
