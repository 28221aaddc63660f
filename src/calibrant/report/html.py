"""The page: audits of one or several models as one self-contained HTML file."""

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from calibrant.files import write_whole
from calibrant.metrics.comparison import Comparison
from calibrant.report.audit import Audit
from calibrant.report.names import clean
from calibrant.report.packages import require_report_packages

# Two names, and their comparison.
Compared = tuple[str, str, Comparison]


class Made(NamedTuple):
    """When, from what and how a page was made, for its foot.

    Attributes:
        date: Date and time.
        command: The command line, or other words.
        files: Names of the files and their SHA-256, or an empty text if there is none.
    """

    date: str
    command: str
    files: Sequence[tuple[str, str]] = ()


def write_report(
    path: str | os.PathLike[str],
    audits: Sequence[Audit],
    comparisons: Sequence[Compared] = (),
    *,
    title: str | None = None,
    opening: Sequence[str] = (),
    made: Made | None = None,
) -> None:
    """Write the page of :func:`render` to a file, atomically.

    Args:
        path: Path of the page.
        audits: One audit for each model.
        comparisons: As in :func:`render`.
        title: As in :func:`render`.
        opening: As in :func:`render`.
        made: As in :func:`render`.

    Example:
        >>> import tempfile
        >>> from calibrant import metrics, report
        >>> found = report.audit("model", metrics.predictions([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), draws=10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.write_report(f"{folder}/out.html", [found])
        ...     print(Path(f"{folder}/out.html").read_text()[:15])
        <!DOCTYPE html>
    """
    write_whole(Path(path), render(audits, comparisons, title=title, opening=opening, made=made))


def render(
    audits: Sequence[Audit],
    comparisons: Sequence[Compared] = (),
    *,
    title: str | None = None,
    opening: Sequence[str] = (),
    made: Made | None = None,
) -> str:
    """Return one self-contained HTML page: no script, nothing to load, the same bytes for the same audits.

    Args:
        audits: One audit for each model; several are shown side by side.
        comparisons: ``(first name, second name, metrics.compare(first, second))`` for pairs of models.
        title: Title of the page; by default the name of the model, or the number of models.
        opening: Sentences at the beginning of the page, one per paragraph.
        made: Date, command and files for the foot of the page.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> given = metrics.predictions(np.full(1000, 0.9), np.arange(1000) % 5 < 4)
        >>> page = report.render([report.audit("a & b", given)])
        >>> "<h1>Calibration of <bdi>a &amp; b</bdi></h1>" in page, "Over-confident by 10.00" in page
        (True, True)
    """
    if not audits:
        raise ValueError("a report needs at least one audit, got none: pass report.audit(name, predictions)")
    require_report_packages()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from calibrant.report import content, content_model, formats

    audits = [replace(audit, name=clean(audit.name)) for audit in audits]
    comparisons = [(clean(first), clean(second), found) for first, second, found in comparisons]
    text, heading = content.title(audits, compared=bool(comparisons))
    if title is not None:
        text, heading = clean(title), formats.isolated(clean(title))
    files = resources.files("calibrant.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": formats.number, "isolated": formats.isolated}
    page = environment.from_string(files.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    return page.render(
        title=text,
        heading=heading,
        css=Markup(files.joinpath("page.css").read_text(encoding="utf-8")),  # noqa: S704 (our own file)
        opening=[clean(sentence) for sentence in opening],
        lead=content.lead(audits),
        models=content_model.models(audits),
        comparisons=[content.comparison(*compared) for compared in comparisons],
        not_compared=content.not_compared(audits, [(first, second) for first, second, _ in comparisons]),
        scores=content.score_rows(audits),
        meanings=content.meanings(audits),
        footer=content.footer(audits),
        made=made,
    )
