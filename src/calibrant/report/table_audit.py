"""Audit of a table that is not read into memory: exact scores by SQL, and tests from cells of confidence."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from calibrant.files import naming, notices_of_start
from calibrant.files.layout import Columns
from calibrant.metrics.binned import CONVENTIONS, ConventionName
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.evaluate import Score, Scores
from calibrant.metrics.intervals import Interval, confidence_interval
from calibrant.metrics.scale import Statistics
from calibrant.metrics.tests import CalibrationTest, Judgement
from calibrant.report.audit import OF_TOP_LABEL, score_of_risk
from calibrant.report.verdict import FEW, JudgedClass, error_of_gap, few_samples, of_classes, risks_of


@dataclass(frozen=True)
class TableAudit:
    """What is known of predictions that were not read into memory.

    Attributes:
        scores: Exact scores.
        sums: Sums, from which everything else follows.
        test: Test of the top label, the risk of class 1 or the confidence.
        gap: Interval of its gap.
        classes: Tests of single classes of several.
        notices: What was assumed or is doubtful, in sentences.
    """

    scores: Scores
    sums: Statistics
    test: CalibrationTest
    gap: Interval
    classes: tuple[Judgement, ...]
    notices: tuple[str, ...]

    @cached_property
    def judged_classes(self) -> tuple[JudgedClass, ...]:
        """Name, p-value, average gap and error of each class."""
        gaps = [confidence_interval(each.view.pairs, metric="gap") for each in self.classes]
        return tuple(
            JudgedClass(each.view.name, each.p_value, gap, error_of_gap(gap))
            for each, gap in zip(self.classes, gaps, strict=True)
        )

    def verdict(self) -> str:
        """The average error, the test, and the classes that are not calibrated, in sentences."""
        sums, gap, names = self.sums, self.gap, self.sums.names
        judged = {
            "risk": f"the {risks_of(names[1] if names else '1')}",
            "top label": "the confidences in the top label",
            "confidence": "the confidences",
        }[sums.judged]
        said = [few_samples(sums.samples)] if sums.samples < FEW else []
        said.append(
            f"The average gap of {judged} is {100 * gap.value:+z.2f} points (95 % interval {100 * gap.low:+z.2f} to "
            f"{100 * gap.high:+z.2f})."
        )
        rejected = "is rejected" if self.test.rejected() else "is not rejected"
        said.append(f"The hypothesis that they are calibrated {rejected} ({p_value(self.test.p_value)}).")
        if self.classes:
            said.append(of_classes("class", self.judged_classes, sums.classes or len(self.classes)))
        return " ".join(said)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "verdict": self.verdict(),
            **self.scores.to_dict(),
            "intervals": {"gap": asdict(self.gap)},
            "test": asdict(self.test) | {"rejected_at_5_percent": self.test.rejected()},
            "views": [
                {
                    "kind": "class", "name": each.view.name, "rejected_at_5_percent": each.rejected,
                    "p_value": each.p_value, "test": asdict(each.test), "gap": asdict(found.gap),
                }
                for each, found in zip(self.classes, self.judged_classes, strict=True)
            ],
            "notices": list(self.notices),
        }  # fmt: skip


def audit_table(
    path: Path,
    columns: Columns,
    *,
    engine: Literal["duckdb", "spark"],
    bins: int | None = None,
    convention: ConventionName = "paper",
    draws: int = 1000,
    seed: int = 0,
    memory_limit: str = "1GB",
    progress: Callable[[float], None] | None = None,
) -> TableAudit:
    """Audit a table by SQL, see :mod:`calibrant.metrics.scale`; bins must be right-closed.

    Args:
        path: File, folder or pattern.
        columns: Names of the columns, and what they mean.
        engine: What runs the SQL.
        bins: Number of bins of ECE; by default the convention's.
        convention: Convention of ECE.
        draws: Number of data sets drawn to test calibration.
        seed: Seed of these draws.
        memory_limit: Memory limit of DuckDB.
        progress: Called with the share of the work that is done, from 0 to 1.
    """
    from calibrant.metrics import scale
    from calibrant.metrics.predictions import MOST
    from calibrant.metrics.registry import metrics_table

    rule = CONVENTIONS[convention]
    if (rule.closed, rule.last) != ("right", "closed"):
        raise ValueError(
            f"{engine} supports only right-closed bins: choose --convention paper or guo, or --engine memory"
        )
    bins = bins or rule.bins
    options: dict[str, Any] = {"columns": columns, "bins": bins, "risk": True, "most_classes": MOST}
    notices: tuple[str, ...] = ()
    with naming(path):
        if engine == "spark":
            sums = scale.statistics_spark(path, **options)  # it reads places that this machine may not
        else:
            try:
                sums = scale.statistics_duckdb(path, **options, memory_limit=memory_limit, progress=progress)
            except MemoryError as error:  # it says what to do
                raise ValueError(str(error)) from error
            notices = notices_of_start(path, columns)
        test = sums.calibration_test(draws=draws, seed=seed)
        gap = sums.gap_interval()
        classes = sums.judge_classes(draws=draws, seed=seed)
    table = metrics_table(bins, convention).items()
    entries = [Score(key, getattr(sums, key), metric.convention) for key, metric in table if hasattr(sums, key)]
    if sums.judged == "risk":
        # Accuracy and mean confidence are scores of the top label, here and in memory.
        entries = [score_of_risk(one, sums.names) for one in entries if one.key not in OF_TOP_LABEL]
    scores = Scores(sums.samples, sums.classes, tuple(entries))
    return TableAudit(scores, sums, test, gap, classes, sums.notices + notices)
