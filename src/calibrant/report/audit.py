"""Audit of one model: its scores, tests of everything it states, and the effect of recalibration."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from calibrant import metrics
from calibrant.files import naming
from calibrant.files.layout import Columns
from calibrant.files.read import notices_of_start
from calibrant.metrics.binned import CONVENTIONS, ConventionName
from calibrant.metrics.closed_form import STATISTICS, CalibrationLine, ClosedFormTest
from calibrant.metrics.evaluate import Score, Scores, html_table
from calibrant.metrics.groups import Change, GroupCalibration, TimeCalibration
from calibrant.metrics.intervals import Comparison, Equivalence, Interval
from calibrant.metrics.predictions import MOST, Predictions, Task
from calibrant.metrics.proper import Decomposition, brier_losses, log_losses
from calibrant.metrics.registry import metrics_table
from calibrant.metrics.tests import CalibrationTest, Judgement
from calibrant.report.formats import score_rows
from calibrant.report.repair import Repair, recalibrated, test_of_view
from calibrant.report.statistics import OF_TOP_LABEL, factor_of, mean_interval, score_of_risk, scores_of
from calibrant.report.verdict import verdict_of

# Two names of models, and their comparison, or the reason why there is none.
Compared = tuple[str, str, Comparison | str]
# Samples times draws of the interval of ECE: beyond, fewer draws are made, but no fewer than 200.
MOST_DRAWN, FEWEST_DRAWS = 2 * 10**7, 200
ABOUT_CELLS = (
    "scores and intervals of gaps are exact, and tests are those of 65,536 cells of confidence; recalibration, groups "
    "and figures need the samples in memory"
)
# Task of a table, by what was judged.
TASKS: dict[str, Task] = {"risk": "binary", "top label": "multi-class", "confidence": "confidence"}


@dataclass(frozen=True, eq=False)
class Finding(Judgement):
    """Everything about one view, in addition to its :class:`calibrant.metrics.tests.Judgement`.

    Attributes:
        gap: Mean probability minus the share that came true.
        factor: The larger of the two over the smaller, if that describes the error of an event better; else None.
        equivalence: Whether the error is shown to be within the margin.
        analytic: Spiegelhalter's, Kolmogorov-Smirnov's and Kuiper's test.
        line: Calibration slope and intercept; None if there is no finite line.
    """

    gap: Interval
    factor: Interval | None
    equivalence: Equivalence
    analytic: tuple[ClosedFormTest, ...]
    line: CalibrationLine | None
    ici: float

    @property
    def amount(self) -> str:
        """Size of the average error in words, with its interval."""
        if self.factor is not None:
            low, high = self.factor.low, self.factor.high
            return f"by a factor of {self.factor.value:.2f} (95 % interval {low:.2f} to {high:.2f})"
        low, high = self.gap.low, self.gap.high
        if self.gap.value <= 0:
            low, high = -high, -low
        size = f"{100 * abs(self.gap.value):.2f} points on average"
        return f"by {size} (95 % interval {100 * low:z.2f} to {100 * high:z.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        equal = self.equivalence
        return test_of_view(self) | {
            "test": asdict(self.test),
            "gap": asdict(self.gap),
            "factor": self.factor and asdict(self.factor),
            "equivalence": asdict(equal) | {"on_average": equal.on_average, "everywhere": equal.everywhere},
            "analytic": [asdict(test) for test in self.analytic],
            "calibration_line": None if self.line is None else self.line._asdict(),
            "integrated_calibration_index": self.ici,
        }


@dataclass(frozen=True, eq=False)
class Audit:
    """All results of a report on one model.

    Attributes:
        task: ``"confidence"``, ``"binary"``, ``"multi-class"`` or ``"multi-label"``.
        predictions: Audited predictions; of a table beyond memory, cells of confidence with weights.
        scores: All scores; of two classes, errors are those of the risk of class 1.
        intervals: 95 % intervals of gap, ECE, log loss (``"log_loss"``) and Brier score.
        findings: Everything about each view; the top label or the risk of class 1 first.
        parts: Calibration and refinement parts of ``"log_loss"`` and ``"brier"``.
        repair: Effect of recalibration; None if nothing can be fitted, or if it was left out.
        problem: Reason why nothing can be fitted; empty if there is a repair, or if it was left out.
        bins: As in :func:`audit`, and so are ``convention`` and ``seed``.
        groups: Calibration of groups of samples, if these were given; so are ``over_time`` and ``change``, since a
            baseline.
        notices: What was assumed of the file, or is doubtful about it or the recalibration, in sentences.
    """

    name: str
    task: Task
    predictions: Predictions
    scores: Scores
    intervals: dict[str, Interval]
    findings: tuple[Finding, ...]
    parts: dict[str, Decomposition]
    repair: Repair | None
    problem: str
    bins: int | None
    convention: ConventionName
    seed: int
    groups: GroupCalibration | None = None
    over_time: TimeCalibration | None = None
    change: Change | None = None
    notices: tuple[str, ...] = ()

    @property
    def test(self) -> CalibrationTest:
        """Test of the top label, the confidence or the risk of class 1; of the worst of several labels."""
        if self.task == "multi-label":
            return min(self.findings, key=lambda found: found.p_value).test
        return self.findings[0].test

    @property
    def classes(self) -> tuple[Finding, ...]:
        """Findings about single classes or labels, which are tested as a family."""
        return tuple(found for found in self.findings if found.view.kind in ("class", "label"))

    @property
    def columns(self) -> dict[str, Scores]:
        """Scores as they are and recalibrated, by their headings."""
        return {"value": self.scores} | ({} if self.repair is None else {"recalibrated": self.repair.scores})

    @property
    def judged(self) -> Predictions:
        """Pairs of the first view: what gap, ECE and the reliability diagram are about; of labels all pairs."""
        return self.predictions if self.task == "multi-label" else self.findings[0].view.pairs

    @property
    def verdict(self) -> str:
        """The audit in a few sentences: how wrong it is, how certain that is, and whether recalibration helps."""
        return verdict_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        groups, over_time, change = self.groups, self.over_time, self.change
        return {
            "name": self.name,
            "verdict": self.verdict,
            "task": self.task,
            **self.scores.to_dict(),
            "intervals": {key: asdict(found) for key, found in self.intervals.items()},
            "test": asdict(self.test) | {"rejected_at_5_percent": self.test.rejected},
            "views": [found.to_dict() for found in self.findings],
            "parts": {score: parts._asdict() for score, parts in self.parts.items()},
            "repair": None if self.repair is None else self.repair.to_dict(),
            "no_repair": self.problem,
            "groups": groups and asdict(groups) | {"rejected": [group.name for group in groups.rejected]},
            "over_time": over_time and asdict(over_time) | {"changed": over_time.changed},
            "baseline": change and asdict(change) | {"changed": change.changed, "worse": change.worse},
            "notices": list(self.notices),
        }

    def _repr_html_(self) -> str:
        rows = [(row.label, *row.values, row.convention) for row in score_rows(list(self.columns.values()))]
        header = ("score", *self.columns, "convention")
        return html_table(f"{self.name}: {self.verdict}", header, rows)


def audit(
    name: str,
    predictions: Predictions,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    draws: int = 1000,
    seed: int = 0,
    margin: float = 0.02,
    repair: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Audit:
    """Score one model, test whether what it states is calibrated, and try to repair it.

    Judged are, by the task, the risk of class 1; the top label and every class; every label; or the confidence.

    Args:
        name: Name of the model, as the report shows it.
        predictions: Predictions of at least 3 samples.
        bins: Number of bins of ECE and of the reliability diagram; by default the convention's.
        convention: Convention of ECE, see :func:`calibrant.metrics.ece`.
        draws: Number of data sets drawn under the hypothesis of calibration, for each view.
        seed: Seed of these draws, and of the halves that check the recalibration.
        margin: Largest acceptable error, as a share: 0.02 is 2 points. See :func:`calibrant.metrics.equivalence`.
        repair: Whether to try recalibration, which takes about half of the time.
        progress: Called with the share of the work that is done, from 0 to 1.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(2000, 4))
        >>> target = [rng.choice(4, p=row) for row in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)]
        >>> found = report.audit("twice too sure", metrics.predictions(logits=2 * logits, target=target), draws=100)
        >>> found.repair.description, bool(found.repair.scores.ece < found.scores.ece)
        ('temperature 1.91', True)
    """
    done = progress or (lambda _: None)
    judgements = metrics.judge(
        predictions, draws=draws, seed=seed, progress=lambda part, total: done(0.4 * part / total)
    )
    scores = scores_of(predictions, bins, convention)
    findings = tuple(_finding(judgement, margin) for judgement in judgements)
    intervals = _intervals(predictions, findings[0], bins, convention, draws, seed)
    done(0.5)
    repaired, problem = None, ""
    if repair:
        try:
            repaired = recalibrated(
                predictions, bins=bins, convention=convention, draws=draws, seed=seed,
                progress=lambda part, total: done(0.6 + 0.4 * part / total),
            )  # fmt: skip
        except ValueError as error:
            problem = str(error)
    parts = {score: metrics.decomposition(predictions, score=score) for score in ("log_loss", "brier")}
    done(1.0)
    notices = () if repaired is None else tuple(repaired.calibrator.notices_)
    return Audit(
        name, predictions.task, predictions, scores, intervals, findings, parts, repaired, problem, bins,
        convention, seed, notices=notices,
    )  # fmt: skip


def _finding(judgement: Judgement, margin: float) -> Finding:
    view, pairs = judgement.view, judgement.view.pairs
    try:
        line = metrics.calibration_line(pairs)
    except ValueError:
        line = None
    return Finding(
        view,
        judgement.test,
        judgement.p_value,
        gap=metrics.confidence_interval(pairs, metric="gap"),
        factor=factor_of(view),
        equivalence=metrics.equivalence(pairs, margin=margin),
        analytic=tuple(metrics.closed_form_test(pairs, statistic=each) for each in STATISTICS),
        line=line,
        ici=metrics.integrated_calibration_index(pairs),
    )


def _intervals(
    given: Predictions, first: Finding, bins: int | None, convention: ConventionName, draws: int, seed: int
) -> dict[str, Interval]:
    found = {}
    if given.task != "multi-label":
        count = min(draws, max(FEWEST_DRAWS, MOST_DRAWN // len(given)))
        found["gap"] = first.gap
        found["ece"] = metrics.confidence_interval(
            first.view.pairs, metric="ece", draws=count, seed=seed, bins=bins, convention=convention
        )
    if given.probabilities is not None:
        found["log_loss"] = mean_interval("log_loss", given, log_losses(given))
        found["brier"] = mean_interval("brier", given, brier_losses(given))
    return found


def audit_table(
    name: str,
    path: Path,
    columns: Columns,
    *,
    engine: Literal["duckdb", "spark"],
    bins: int | None,
    convention: ConventionName,
    draws: int,
    seed: int,
    margin: float,
    memory_limit: str,
    progress: Callable[[float], None],
) -> Audit:
    """Audit a table that is not read into memory, as :func:`audit` does: exact scores by SQL, and tests of cells."""
    from calibrant.metrics import scale

    rule = CONVENTIONS[convention]
    if (rule.closed, rule.last) != ("right", "closed"):
        raise ValueError(
            f"{engine} supports only right-closed bins: choose --convention paper or guo, or --engine memory"
        )
    count = bins or rule.bins
    options: dict[str, Any] = {"columns": columns, "bins": count, "risk": True, "most_classes": MOST}
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
        findings = tuple(_finding(judgement, margin) for judgement in sums.judge(draws=draws, seed=seed))
    judged = sums.views[0].kind
    measures = metrics_table(count, convention).items()
    entries = [
        Score(key, getattr(sums, key), metric.convention, metric.label)
        for key, metric in measures if hasattr(sums, key)
    ]  # fmt: skip
    if judged == "risk":
        # Accuracy and mean confidence are scores of the top label, here and in memory.
        entries = [score_of_risk(one, sums.names) for one in entries if one.key not in OF_TOP_LABEL]
    scores = Scores(sums.samples, sums.classes, tuple(entries))
    return Audit(
        name, TASKS[judged], sums.pairs, scores, {"gap": findings[0].gap}, findings, {}, None, "", bins,
        convention, seed, notices=tuple(dict.fromkeys((*sums.notices, *notices, ABOUT_CELLS))),
    )  # fmt: skip
