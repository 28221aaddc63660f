"""The verdict: an audit in one sentence."""

from calibrant.metrics.predictions import Predictions
from calibrant.metrics.verdicts import p_value
from calibrant.report.audit import Audit, Repair
from calibrant.report.chance import chance_gap
from calibrant.report.temperature import is_saturated

# Smallest gap that is mentioned, as a share: it is shown in points with two decimals.
LEAST_GAP = 0.00005
HYPOTHESIS = "the hypothesis that the model is calibrated"


def verdict(audit: Audit) -> str:
    """Say in one sentence how a model is miscalibrated, how certain that is, and whether a temperature helps.

    The gap counts as over- or under-confidence if it is larger than chance explains in a calibrated model. A
    temperature repairs the model if the test no longer rejects it, on halves the temperature was not fitted on, and
    its gap is within chance; if not, smooth ECE, which needs no bins, measures how much of the error is left.

    Args:
        audit: Audit from :func:`calibrant.report.audit`.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> given = metrics.predictions(np.full(1000, 0.9), np.arange(1000) % 5 < 4)
        >>> print(report.verdict(report.audit("model", given)))
        over-confident by 10.00 points; the hypothesis that the model is calibrated is rejected (p < 0.001); a
        temperature needs logits or probabilities, but only confidences were given
    """
    p = p_value(audit.test.p_value)
    lean = _lean(audit)
    if not audit.test.rejected():
        if lean:
            return f"{lean}, though {HYPOTHESIS} is not rejected ({p})"
        return f"not distinguishable from a calibrated model ({p}){_blind_spot(audit.predictions)}"
    start = f"{lean};" if lean else "neither over- nor under-confident on average, but"
    return f"{start} {HYPOTHESIS} is rejected ({p}); {_hope(audit)}"


def caveat(audit: Audit) -> str:
    """A reservation about a fitted temperature; empty if there is none."""
    if audit.repair is None or not is_saturated(audit.predictions):
        return ""
    return "most confidences are exactly 1, so the temperature depends on the number used in place of p = 0"


def _lean(audit: Audit) -> str:
    gap = audit.scores.gap
    if abs(gap) < LEAST_GAP or abs(gap) <= chance_gap(audit.predictions):
        return ""
    return f"{'over' if gap > 0 else 'under'}-confident by {100 * abs(gap):.2f} points"


def _blind_spot(predictions: Predictions) -> str:
    """Gap that this number of samples could not have shown."""
    unseen = chance_gap(predictions)
    if unseen < LEAST_GAP:
        return ""
    return f"; with {len(predictions):,} samples an average gap below {100 * unseen:.2f} points would not be detected"


def _hope(audit: Audit) -> str:
    if audit.repair is None:
        return audit.problem
    but = caveat(audit)
    return f"temperature {audit.repair.temperature:.3g} {_effect(audit, audit.repair)}{but and f', but {but}'}"


def _effect(audit: Audit, repair: Repair) -> str:
    if not repair.test.rejected() and abs(repair.scores.gap) <= chance_gap(repair.predictions):
        return f"repairs it, as far as {len(audit.predictions):,} samples show"
    before, after = audit.scores.smooth_ece, repair.scores.smooth_ece
    removed = 1 - after / before if before > 0 else 0.0
    if removed >= 0.5:
        return "repairs most of it"
    if removed >= 0.2:
        return "repairs part of it"
    return "hardly helps" if removed > -0.1 else "makes it worse"
