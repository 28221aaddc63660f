"""Content of the page about groups, time and the baseline."""

from typing import Any

from markupsafe import Markup

from calibrant.metrics import GroupScore, Window
from calibrant.report.audit import Audit
from calibrant.report.formats import bare_p, counted, ends, percent, points, sentence
from calibrant.report.names import as_sentence

# Rows of the table of groups; the rest is in JSON.
MOST_GROUPS = 40


def groups(audit: Audit, figure: Markup) -> dict[str, Any] | None:
    """The sentence, the figure and the table of groups; None if there are none."""
    found = audit.groups
    if found is None:
        return None
    rejected = len(found.rejected)
    said = (
        f"{rejected or 'None'} of {counted(len(found.groups), 'group')} {'is' if rejected <= 1 else 'are'} rejected as "
        f"uncalibrated, with Holm's correction for their number. Multicalibration error: "
        f"{percent(found.multicalibration_error)}."
    )
    if found.too_small:
        said += f" Not judged, with fewer than {found.least} samples: {counted(len(found.too_small), 'group')}."
    if len(found.groups) > MOST_GROUPS:
        said += f" The table shows the worst {MOST_GROUPS}."
    rows = [_row(each) | {"p": bare_p(each.p_value)} for each in found.groups[:MOST_GROUPS]]
    return {"sentence": said, "figure": figure, "rows": rows, "columns": _columns(audit)}


def over_time(audit: Audit, figure: Markup) -> dict[str, Any] | None:
    """The sentence, the figure and the table of windows; None if no times were given."""
    found = audit.over_time
    if found is None:
        return None
    rows = [_row(each) for each in found.windows]
    return {
        "sentence": sentence(as_sentence(found)),
        "figure": figure,
        "rows": rows,
        "columns": _columns(audit),
    }


def change(audit: Audit) -> str:
    """The sentence about the baseline; empty if there is none."""
    if audit.change is None:
        return ""
    return sentence(as_sentence(audit.change))


def _row(each: GroupScore | Window) -> dict[str, str]:
    name = each.name if isinstance(each, GroupScore) else f"{each.start} to {each.end}"
    return {
        "name": name, "gap": points(each.gap.value), "interval": ends(each.gap), "samples": f"{each.samples:,}",
        "stated": percent(each.mean_confidence), "came": percent(each.accuracy),
    }  # fmt: skip


def _columns(audit: Audit) -> dict[str, str]:
    if audit.findings[0].view.of_event:
        return {"stated": f"mean P({audit.findings[0].view.name})", "came": "share"}
    return {"stated": "mean confidence", "came": "accuracy"}
