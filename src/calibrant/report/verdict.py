"""The verdict: an audit in a few sentences, each of them about what was tested."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from calibrant import metrics
from calibrant.metrics import confidence_interval
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.predictions import View
from calibrant.report.formats import as_sentence, ends, points, shortened
from calibrant.report.statistics import ERRORS, excludes_zero

if TYPE_CHECKING:  # an audit shows its verdict, so it imports this file
    from calibrant.report.audit import Audit, Finding
    from calibrant.report.repair import Repair

# Classes or labels that are described one by one, the rest is counted; and letters of a name.
MOST_NAMED, LONGEST = 3, 60
# Fewer samples than these are said to be few, as groups of fewer are not judged; and how many would do.
FEW, ENOUGH = 30, 100


def verdict_of(audit: "Audit") -> str:
    """Say how wrong the stated probabilities are, how certain that is, and whether recalibration helps."""
    findings, samples = audit.findings, audit.scores.samples
    said = []
    if samples < FEW:
        said.append(
            f"{samples:,} samples are few: only large errors show, and intervals are rough; give {ENOUGH} or more."
        )
    said += [_of_view(found, samples) for found in findings if found not in audit.classes]
    if audit.classes:
        said.append(_of_classes(audit))
    if any(found.rejected for found in findings) and (audit.repair is not None or audit.problem):
        said.append(_recalibration(audit))
    if audit.groups is not None and audit.groups.rejected:
        wrong = audit.groups.rejected
        named = _first([f"{shortened(group.name, LONGEST)} ({points(group.gap.value)} points)" for group in wrong])
        are = "is" if len(wrong) == 1 else "are"
        said.append(
            f"{len(wrong):,} of {len(audit.groups.groups):,} groups {are} not calibrated (Holm's correction): {named}."
        )
    if audit.over_time is not None and audit.over_time.changed:
        said.append(as_sentence(audit.over_time))
    if audit.change is not None and audit.change.changed:
        said.append(f"Since the baseline, {audit.change}.")
    return " ".join(said)


def _first(each: Sequence[str]) -> str:
    """The first of a list, and the number of the rest."""
    more = [f"and {len(each) - MOST_NAMED:,} more"] if len(each) > MOST_NAMED else []
    return "; ".join([*each[:MOST_NAMED], *more])


def _of_view(found: "Finding", samples: int) -> str:
    """The sentences about the confidence, the top label or the risk of class 1."""
    stated, gap, shape = _stated(found.view), found.gap, _shape(found)
    outcome = f"{'is rejected' if found.rejected else 'is not rejected'} ({p_value(found.p_value)})"
    if excludes_zero(gap):
        over = gap.value > 0
        wrong = f"{'Over' if over else 'Under'}-confident{stated.removeprefix('confidences')}"
        if found.view.of_event:
            wrong = f"{stated[0].upper()}{stated[1:]} are {'over' if over else 'under'}stated"
        said = f"{wrong} {found.amount}. The hypothesis that these {stated.split()[0]} are calibrated {outcome}."
    elif found.rejected:
        said = (
            f"The average error of the {stated} is within chance (95 % interval {ends(gap)} points), but the "
            f"hypothesis that they are calibrated {outcome}{shape and f': they are {shape}'}."
        )
    else:
        said = f"The hypothesis that the {stated} are calibrated {outcome}. {_not_ruled_out(found, samples)}"
    return said + _acceptance(found)


def _stated(view: View) -> str:
    """What the probabilities are called: a class with a name may be any, so its name stands out."""
    if not view.of_event:
        return "confidences in the top label" if view.kind == "top label" else "confidences"
    short = shortened(view.name, LONGEST)
    if short.lstrip("-").isdecimal():
        return f"risks of class {short}"
    return f"probabilities of class {short!r} (P(y = {short}))"


def _shape(found: "Finding") -> str:
    """How the error depends on the probability; empty if the calibration line does not say."""
    line = found.line
    if line is None or line.slope_low <= 1 <= line.slope_high:
        return ""
    how = "too extreme" if line.slope < 1 else "too moderate"
    if line.slope <= 0:
        how = "no higher where the event is more frequent"
    return f"{how} (calibration slope {line.slope:.2f})"


def _not_ruled_out(found: "Finding", samples: int) -> str:
    """Size of the errors that these samples cannot rule out."""
    equal = found.equivalence
    average = 100 * max(abs(equal.low), abs(equal.high), equal.largest * (equal.groups == 1))
    said = f"{samples:,} samples cannot rule out an average error of {average:.2f} points"
    if equal.groups > 1:
        said += f", nor one of {100 * equal.largest:.2f} points in one of {equal.groups} groups by probability"
    return f"{said}."


def _acceptance(found: "Finding") -> str:
    equal = found.equivalence
    if not equal.on_average or (equal.groups == 1 and not equal.everywhere):
        return ""
    where = f", and in each of {equal.groups} groups by probability" if equal.everywhere and equal.groups > 1 else ""
    return (
        f" The average error is within ± {100 * equal.margin:g} points{where}, with {100 * equal.level:g} % confidence."
    )


def _of_classes(audit: "Audit") -> str:
    family, first = audit.classes, audit.findings[0]
    total, kind = audit.scores.classes or len(family), family[0].view.kind
    start = "But the" if first not in family and not first.rejected else "The"
    words = f"{kind}es" if kind == "class" else f"{kind}s"
    of = f"{len(family):,} {words}"
    if total > len(family):
        of = f"the {len(family):,} {words} of {total:,} that the model expects most often"
    smallest = p_value(min(found.p_value for found in family))
    correction = "Holm's correction" if len(family) > 1 else "one test"
    wrong = sorted((found for found in family if found.rejected), key=lambda found: -abs(found.gap.value))
    if not wrong:
        # Of all of them together: intervals at a level that makes all hold.
        wider = NormalDist().inv_cdf(1 - 0.025 / len(family)) / ERRORS
        gaps = [found.gap for found in family]
        widest = max(abs(gap.value) + wider * (gap.high - gap.low) / 2 for gap in gaps)
        none = f"None of {of} is rejected as uncalibrated (smallest {smallest}, {correction})"
        return f"{none}; average errors of up to {100 * widest:.2f} points cannot be ruled out."
    named = _first([f"{kind} {shortened(found.view.name, LONGEST)} {_of_class(found)}" for found in wrong])
    return (
        f"{start} probabilities of {len(wrong):,} of {of} are not calibrated ({smallest} at the smallest, "
        f"{correction}): {named}."
    )


def _of_class(found: "Finding") -> str:
    if not excludes_zero(found.gap):
        return f"is within chance on average, but {_shape(found) or 'not at every probability'}"
    shape = _shape(found)
    over = "over" if found.gap.value > 0 else "under"
    return f"is {over}stated {found.amount}{shape and f', and {shape}'}"


def _recalibration(audit: "Audit") -> str:
    first = audit.findings[0]
    if audit.task == "binary" and first.line is not None and first.line.slope_high < 0:
        return "The higher the probability, the rarer the class: check which class it is for before you recalibrate."
    if audit.repair is None:
        return f"Recalibration was not tried: {audit.problem}."
    given, but = audit.predictions, ""
    if given.logits is None and float((given.confidence == 1).mean()) > 0.5:
        but = ", but most confidences are exactly 1, so the fit depends on the number used in place of p = 0"
    return f"Recalibration by {audit.repair.description} {_effect(audit, audit.repair)}{but}."


def _effect(audit: "Audit", repair: "Repair") -> str:
    alone = [found for found in repair.judgements if found.view.kind not in ("class", "label")]
    still = any(excludes_zero(confidence_interval(found.view.pairs, metric="gap")) for found in alone)
    if not still and not any(found.rejected for found in repair.judgements):
        said = f"repairs it, as far as {audit.scores.samples:,} samples show (cross-fitted)"
        if audit.groups is not None or audit.over_time is not None:
            said += ", on all samples together: groups and times were not tested again"
        return said
    wrong = [place for place, found in enumerate(audit.findings) if found.rejected]
    before = float(np.mean([metrics.smooth_ece(audit.findings[place].view.pairs) for place in wrong]))
    after = float(np.mean([metrics.smooth_ece(repair.judgements[place].view.pairs) for place in wrong]))
    error = f"the smooth ECE of what is rejected from {100 * before:.2f} to {100 * after:.2f} %"
    return f"does not repair it, and takes {error} (cross-fitted)"
