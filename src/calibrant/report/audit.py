"""Audit of one model: its scores, tests of everything it states, and the effect of recalibration."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from calibrant import metrics
from calibrant.metrics import (
    AnalyticTest,
    CalibrationLine,
    Change,
    Decomposition,
    Equivalence,
    GroupCalibration,
    Interval,
    Judgement,
    Score,
    TimeCalibration,
    notebook,
)
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.inference import CalibrationTest
from calibrant.metrics.predictions import Predictions, Task
from calibrant.metrics.verdicts import p_value
from calibrant.metrics.views import View
from calibrant.report.lean import Lean, lean_of
from calibrant.report.losses import brier_losses, log_losses, loss_weight, mean_interval
from calibrant.report.repair import Recalibrated, recalibrated
from calibrant.report.verdict import verdict

Progress = Callable[[float], None]
# Scores of the top label, even where the risk of class 1 is judged.
OF_TOP_LABEL = ("accuracy", "mean_confidence", "aurc")
# Samples times draws of the interval of ECE: beyond, fewer draws are made, but no fewer than 200.
MOST_DRAWN, FEWEST_DRAWS = 2 * 10**7, 200


@dataclass(frozen=True, eq=False)
class Finding:
    """Everything about one view: the top label, a class, a label, or the risk of class 1.

    Attributes:
        view: What is judged.
        test: Test of calibration with ESD, by consistency resampling.
        p_value: Its p-value, corrected by Holm's method for the number of classes or labels.
        lean: Average error, in points or as a factor.
        equivalence: Whether the error is shown to be within the margin.
        analytic: Spiegelhalter's, Kolmogorov-Smirnov's and Kuiper's test.
        line: Calibration slope and intercept; None if there is no finite line.
        ici: Integrated calibration index.
    """

    view: View
    test: CalibrationTest
    p_value: float
    lean: Lean
    equivalence: Equivalence
    analytic: tuple[AnalyticTest, ...]
    line: CalibrationLine | None
    ici: float

    @property
    def rejected(self) -> bool:
        """Whether the hypothesis of calibration is rejected at 5 %, after the correction."""
        return self.p_value <= 0.05

    def _repr_html_(self) -> str:
        rows = [
            ("average error", str(self.lean.gap)),
            ("test", f"{p_value(self.p_value)}, {'rejected' if self.rejected else 'not rejected'} at 5 %"),
            *((test.name, f"{test.statistic:z.2f}, {p_value(test.p_value)}") for test in self.analytic),
            ("equivalence", str(self.equivalence)),
            ("calibration line", "none that is finite" if self.line is None else str(self.line)),
            ("ICI", f"{100 * self.ici:.2f} %"),
        ]
        return notebook.table(str(self.view), (), rows, right=())


@dataclass(frozen=True, eq=False)
class Repair:
    """Effect of recalibration, measured on samples it was not fitted on.

    Attributes:
        how: The method, its parameters and its log loss against those of the other methods that were tried.
        scores: Scores of the recalibrated predictions.
        judgements: Test of each view of them.
    """

    how: Recalibrated
    scores: metrics.Scores
    judgements: tuple[Judgement, ...]

    @property
    def predictions(self) -> Predictions:
        """Every sample recalibrated by a fit on the other half of the samples."""
        return self.how.predictions

    def _repr_html_(self) -> str:
        return self.how._repr_html_() + self.scores._repr_html_()


@dataclass(frozen=True, eq=False)
class Audit:
    """All results of a report on one model.

    Attributes:
        name: Name of the model.
        task: ``"confidence"``, ``"binary"``, ``"multi-class"`` or ``"multi-label"``.
        predictions: Audited predictions.
        scores: All scores; of two classes, errors are those of the risk of class 1.
        intervals: 95 % intervals of gap, ECE, log loss (``"nll"``) and Brier score.
        findings: Everything about each view; the top label or the risk of class 1 first.
        parts: Calibration and refinement parts of ``"log_loss"`` and ``"brier"``.
        repair: Effect of recalibration; None if nothing can be fitted, or if it was left out.
        problem: Reason why nothing can be fitted; empty if there is a repair, or if it was left out.
        bins: Number of bins of ECE; None for the convention's.
        convention: Convention of ECE.
        seed: Seed of the draws and of the halves.
        groups: Calibration of groups of samples, if these were given.
        over_time: Calibration over time, if times were given.
        change: Change of calibration since a baseline, if one was given.
        notices: What was assumed of the file, or is doubtful, in sentences.
    """

    name: str
    task: Task
    predictions: Predictions
    scores: metrics.Scores
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
    def judged(self) -> Predictions:
        """Pairs of the first view: what gap, ECE and the reliability diagram are about; of labels all pairs."""
        return self.predictions if self.task == "multi-label" else self.findings[0].view.pairs

    def _repr_html_(self) -> str:
        after = [""] * len(self.scores.entries) if self.repair is None else list(map(str, self.repair.scores))
        rows = [(e.label, str(e), new, e.convention) for e, new in zip(self.scores, after, strict=True)]
        header = ("score", "value", "recalibrated", "convention")
        page = notebook.table(f"{self.name}: {verdict(self)}", header, rows, right=(1, 2))
        watched: list[Any] = [self.groups, self.over_time, self.change]
        return page + "".join(found._repr_html_() for found in watched if found is not None)


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
    progress: Progress | None = None,
) -> Audit:
    """Score one model, test whether what it states is calibrated, and try to repair it.

    Judged are, by the task, the risk of class 1; the top label and every class; every label; or the confidence: see
    :func:`calibrant.metrics.views`.

    Args:
        name: Name of the model, as the report shows it.
        predictions: Predictions of at least 3 samples, from ``metrics.predictions``.
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
        >>> found.repair.how.description, bool(found.repair.scores.ece < found.scores.ece)
        ('temperature 1.91', True)
    """
    judgements = metrics.judge(predictions, draws=draws, seed=seed, progress=_part(progress, 0.0, 0.4))
    scores = scores_of(predictions, bins, convention)
    findings = tuple(_finding(judgement, margin) for judgement in judgements)
    intervals = _intervals(predictions, findings[0].view, bins, convention, draws, seed)
    if progress is not None:
        progress(0.5)
    repaired, problem = None, ""
    try:
        how = recalibrated(predictions, seed) if repair else None
    except ValueError as error:
        how, problem = None, str(error).split(":")[0]  # what follows a colon is advice to direct callers of the fit
    if how is not None:
        judged = metrics.judge(how.predictions, draws=draws, seed=seed, progress=_part(progress, 0.6, 0.4), early=True)
        repaired = Repair(how, scores_of(how.predictions, bins, convention), judged)
    parts = {score: metrics.decomposition(predictions, score=score) for score in ("log_loss", "brier")}
    if progress is not None:
        progress(1.0)
    return Audit(
        name, predictions.task, predictions, scores, intervals, findings, parts, repaired, problem, bins,
        convention, seed,
    )  # fmt: skip


def _finding(judgement: Judgement, margin: float) -> Finding:
    pairs = judgement.view.pairs
    try:
        line = metrics.calibration_line(pairs)
    except ValueError:
        line = None
    return Finding(
        judgement.view,
        judgement.test,
        judgement.p_value,
        lean_of(judgement.view),
        metrics.equivalence(pairs, margin=margin),
        (metrics.spiegelhalter_test(pairs), metrics.ks_test(pairs), metrics.kuiper_test(pairs)),
        line,
        metrics.integrated_calibration_index(pairs),
    )


def scores_of(given: Predictions, bins: int | None = None, convention: ConventionName = "paper") -> metrics.Scores:
    """All scores; of two classes, those of pairs are scores of the probability of class 1."""
    scores = metrics.evaluate(given, bins=bins, convention=convention)
    if given.task != "binary":
        return scores
    (view,) = metrics.views(given)
    risk = replace(given, confidence=view.pairs.confidence, correct=view.pairs.correct)
    of_risk = metrics.evaluate(risk, bins=bins, convention=convention)
    stated = f"P({view.name})" if given.names else "P(y = 1)"

    def entry(one: Score, other: Score) -> Score:
        of_top_label = one.key in OF_TOP_LABEL or metrics.METRICS[one.key].of_classes
        return one if of_top_label else score_of_risk(other, stated)

    return metrics.Scores(scores.samples, scores.classes, tuple(map(entry, scores, of_risk)))


def score_of_risk(score: Score, stated: str = "P(y = 1)") -> Score:
    """A score of pairs, named as one of the probability of an event."""
    convention = score.convention.replace("accuracy", "share")
    convention = f"mean {stated} - its share" if score.key == "gap" else f"{stated}; {convention}"
    return replace(score, convention=convention, name=f"Brier, {stated}" if score.key == "brier_top" else "")


def _intervals(
    given: Predictions, view: View, bins: int | None, convention: ConventionName, draws: int, seed: int
) -> dict[str, Interval]:
    found = {}
    if given.task != "multi-label" and len(given) > 1:
        count = min(draws, max(FEWEST_DRAWS, MOST_DRAWN // len(given)))
        for metric in ("gap", "ece"):
            found[metric] = metrics.confidence_interval(
                view.pairs, metric=metric, draws=count, seed=seed, bins=bins, convention=convention
            )
    if given.probabilities is not None:
        found["nll"] = mean_interval("nll", log_losses(given), loss_weight(given))
        found["brier"] = mean_interval("brier", brier_losses(given), loss_weight(given))
    return found


def _part(progress: Progress | None, start: float, share: float) -> Callable[[int, int], None] | None:
    """Progress of one of the parts as progress of the audit."""
    return None if progress is None else lambda done, total: progress(start + share * done / total)
