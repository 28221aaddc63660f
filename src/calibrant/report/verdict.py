"""The verdict: what the numbers of an audit come to, in one sentence."""

import math

import numpy as np

from calibrant.metrics.predictions import Predictions
from calibrant.report.audit import Audit, Repair

# Two-sided 95 % of chance, in standard errors.
ERRORS = 1.959964
# The least gap worth a word, in shares: people read it in points with one decimal.
LEAST_GAP = 0.0005


def verdict(audit: Audit) -> str:
    """Say in one sentence how honest a model is, how sure that is, and whether a temperature helps.

    The gap counts as over- or under-confidence if it is larger than chance explains in a calibrated model. How
    much a temperature repairs is judged by ECE on halves it was not fitted on.

    Args:
        audit: From :func:`calibrant.report.audit`.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> given = metrics.predictions(np.full(1000, 0.9), np.arange(1000) % 5 < 4)
        >>> print(report.verdict(report.audit("model", given)))
        over-confident by 10.0 points; calibrated is rejected, p < 0.001; a temperature needs logits or probabilities,
        and only confidences were given
    """
    p = p_value(audit.test.p_value)
    lean = _lean(audit)
    if not audit.test.rejected():
        if lean:
            return f"{lean}, though calibrated is not rejected, {p}"
        return f"not distinguishable from calibrated, {p}{_blind_spot(audit.predictions)}"
    start = f"{lean};" if lean else "neither over- nor under-confident on average, but"
    return f"{start} calibrated is rejected, {p}; {_hope(audit)}"


def p_value(value: float) -> str:
    """A p-value for people.

    Example:
        >>> p_value(0.000999), p_value(0.0123), p_value(0.4128)
        ('p < 0.001', 'p = 0.012', 'p = 0.41')
    """
    if value < 0.001:
        return "p < 0.001"
    return f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def chance_gap(predictions: Predictions) -> float:
    """How large an average gap chance alone gives a calibrated model: its 95 % point."""
    confidence = predictions.confidence.astype(np.float64)
    return ERRORS * math.sqrt(float((confidence * (1 - confidence)).sum())) / len(confidence)


def _lean(audit: Audit) -> str:
    gap = audit.scores.gap
    if abs(gap) < LEAST_GAP or abs(gap) <= chance_gap(audit.predictions):
        return ""
    return f"{'over' if gap > 0 else 'under'}-confident by {100 * abs(gap):.1f} points"


def _blind_spot(predictions: Predictions) -> str:
    """What so many samples could not have shown."""
    unseen = chance_gap(predictions)
    if unseen < LEAST_GAP:
        return ""
    return f"; with {len(predictions):,} samples an average gap below {100 * unseen:.1f} points would not show"


def _hope(audit: Audit) -> str:
    if audit.repair is None:
        return audit.problem
    return f"temperature {audit.repair.temperature:.3g} {_effect(audit, audit.repair)}"


def _effect(audit: Audit, repair: Repair) -> str:
    removed = 1 - repair.scores.ece / audit.scores.ece if audit.scores.ece > 0 else 0.0
    if removed >= 0.5:
        remains = repair.test.rejected()
        return "repairs most of it" if remains else f"repairs it, as far as {len(audit.predictions):,} samples can tell"
    if removed >= 0.2:
        return "repairs part of it"
    return "hardly helps" if removed > -0.1 else "makes it worse"
