"""Audit of one model: its scores, tests of everything it states, and the effect of recalibration."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from calibrant import metrics
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.change import Change, TimeCalibration
from calibrant.metrics.closed_form import CalibrationLine, ClosedFormTest
from calibrant.metrics.decomposition import Decomposition
from calibrant.metrics.evaluate import Score, Scores, html_table
from calibrant.metrics.groups import GroupCalibration
from calibrant.metrics.intervals import Equivalence, Interval
from calibrant.metrics.predictions import Predictions, Task, View, views
from calibrant.metrics.tests import CalibrationTest, Judgement
from calibrant.report.repair import FEWEST, Recalibrated, recalibrated
from calibrant.report.statistics import (
    AverageError,
    average_error,
    brier_losses,
    log_losses,
    loss_share,
    mean_interval,
)
from calibrant.report.verdict import verdict

Progress = Callable[[float], None]
# Scores of the top label, even where the risk of class 1 is judged.
OF_TOP_LABEL = ("accuracy", "mean_confidence", "aurc")
# Samples times draws of the interval of ECE: beyond, fewer draws are made, but no fewer than 200.
MOST_DRAWN, FEWEST_DRAWS = 2 * 10**7, 200


@dataclass(frozen=True, eq=False)
class Finding(Judgement):
    """Everything about one view: the top label, a class, a label, or the risk of class 1.

    Attributes:
        view: What is judged.
        test: Test of calibration with ESD, by consistency resampling.
        p_value: Its p-value, corrected by Holm's method for the number of classes or labels.
        average: Average error, in points or as a factor.
        equivalence: Whether the error is shown to be within the margin.
        analytic: Spiegelhalter's, Kolmogorov-Smirnov's and Kuiper's test.
        line: Calibration slope and intercept; None if there is no finite line.
        ici: Integrated calibration index.
    """

    average: AverageError
    equivalence: Equivalence
    analytic: tuple[ClosedFormTest, ...]
    line: CalibrationLine | None
    ici: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        equal, factor = self.equivalence, self.average.factor
        return _judged(self) | {
            "test": asdict(self.test),
            "gap": asdict(self.average.gap),
            "factor": None if factor is None else factor._asdict(),
            "equivalence": asdict(equal) | {"on_average": equal.on_average, "everywhere": equal.everywhere},
            "analytic": [asdict(test) for test in self.analytic],
            "calibration_line": None if self.line is None else self.line._asdict(),
            "integrated_calibration_index": self.ici,
        }


@dataclass(frozen=True, eq=False)
class Repair(Recalibrated):
    """Effect of recalibration, measured on samples it was not fitted on.

    Attributes:
        method: Name of the method in ``posthoc.METHODS``.
        description: The method with its parameters, fitted on all samples.
        calibrator: The calibrator fitted on all samples, the one to use.
        predictions: Every sample recalibrated by a fit on the other half of the samples.
        tried: Log loss of each method that was tried, on the halves it was not fitted on.
        scores: Scores of the recalibrated predictions.
        judgements: Test of each view of them.
    """

    scores: Scores
    judgements: tuple[Judgement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "method": self.method,
            "description": self.description,
            "temperature": getattr(self.calibrator, "temperature_", None) if self.method == "temperature" else None,
            "weights": getattr(self.calibrator, "weights_", None) if self.method == "auto" else None,
            "notices": list(self.calibrator.notices_),
            "cross_fitted_log_loss": self.tried,
            **self.scores.to_dict(),
            "views": [_judged(found) for found in self.judgements],
        }

    def _repr_html_(self) -> str:
        rows = [(f"log loss of {name}, cross-fitted", f"{loss:.4f}") for name, loss in self.tried.items()]
        return html_table(f"Recalibration by {self.description}", (), rows) + self.scores._repr_html_()


@dataclass(frozen=True, eq=False)
class Audit:
    """All results of a report on one model.

    Attributes:
        name: Name of the model.
        task: ``"confidence"``, ``"binary"``, ``"multi-class"`` or ``"multi-label"``.
        predictions: Audited predictions.
        scores: All scores; of two classes, errors are those of the risk of class 1.
        intervals: 95 % intervals of gap, ECE, log loss (``"log_loss"``) and Brier score.
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
    def judged(self) -> Predictions:
        """Pairs of the first view: what gap, ECE and the reliability diagram are about; of labels all pairs."""
        return self.predictions if self.task == "multi-label" else self.findings[0].view.pairs

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        groups, over_time, change = self.groups, self.over_time, self.change
        return {
            "name": self.name,
            "verdict": verdict(self),
            "task": self.task,
            **self.scores.to_dict(),
            "intervals": {key: asdict(found) for key, found in self.intervals.items()},
            "test": asdict(self.test) | {"rejected_at_5_percent": self.test.rejected()},
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
        after = [""] * len(self.scores.entries) if self.repair is None else list(map(str, self.repair.scores))
        rows = [(e.label, str(e), new, e.convention) for e, new in zip(self.scores, after, strict=True)]
        header = ("score", "value", "recalibrated", "convention")
        return html_table(f"{self.name}: {verdict(self)}", header, rows, right=(1, 2))


def _judged(found: Judgement) -> dict[str, Any]:
    return {
        "kind": found.view.kind,
        "name": found.view.name,
        "rejected_at_5_percent": found.rejected,
        "p_value": found.p_value,
    }


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

    Judged are, by the task, the risk of class 1; the top label and every class; every label; or the confidence.

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
        >>> found.repair.description, bool(found.repair.scores.ece < found.scores.ece)
        ('temperature 1.91', True)
    """
    judgements = metrics.judge(predictions, draws=draws, seed=seed, progress=_part(progress, 0.0, 0.4))
    scores = scores_of(predictions, bins, convention)
    findings = tuple(_finding(judgement, margin) for judgement in judgements)
    intervals = _intervals(predictions, findings[0].view, bins, convention, draws, seed)
    if progress is not None:
        progress(0.5)
    repaired, problem = None, ""
    if repair and predictions.samples < FEWEST:
        problem = f"{predictions.samples} samples are too few to check it on halves"
    elif repair:
        try:
            found = recalibrated(predictions, seed)
        except ValueError as error:
            problem = str(error)
        else:
            after, share = found.predictions, _part(progress, 0.6, 0.4)
            judged = metrics.judge(after, draws=draws, seed=seed, progress=share, early=True)
            repaired = Repair(**vars(found), scores=scores_of(after, bins, convention), judgements=judged)
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
        **vars(judgement),
        average=average_error(judgement.view),
        equivalence=metrics.equivalence(pairs, margin=margin),
        analytic=(
            metrics.closed_form_test(pairs, statistic="spiegelhalter"),
            metrics.closed_form_test(pairs, statistic="kolmogorov-smirnov"),
            metrics.closed_form_test(pairs, statistic="kuiper"),
        ),
        line=line,
        ici=metrics.integrated_calibration_index(pairs),
    )


def scores_of(given: Predictions, bins: int | None = None, convention: ConventionName = "paper") -> Scores:
    """All scores; of two classes, those of pairs are scores of the probability of class 1."""
    scores = metrics.evaluate(given, bins=bins, convention=convention)
    if given.task != "binary":
        return scores
    (view,) = views(given)
    risk = replace(given, confidence=view.pairs.confidence, correct=view.pairs.correct)
    of_risk = metrics.evaluate(risk, bins=bins, convention=convention)

    def entry(one: Score, other: Score) -> Score:
        of_top_label = one.key in OF_TOP_LABEL or metrics.METRICS[one.key].of_classes
        return one if of_top_label else score_of_risk(other, given.names)

    return Scores(scores.samples, scores.classes, tuple(map(entry, scores, of_risk)))


def score_of_risk(score: Score, names: tuple[str, ...] | None) -> Score:
    """A score of pairs, named as one of the probability of the second of two classes."""
    stated = f"P({names[1]})" if names else "P(y = 1)"
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
        share = loss_share(given)
        found["log_loss"] = mean_interval("log_loss", log_losses(given), share)
        found["brier"] = mean_interval("brier", brier_losses(given), share)
    return found


def _part(progress: Progress | None, start: float, share: float) -> Callable[[int, int], None] | None:
    """Progress of one of the parts as progress of the audit."""
    return None if progress is None else lambda done, total: progress(start + share * done / total)
