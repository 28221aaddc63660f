"""One HTML page for a whole store: its tables, figures, trials and failures, with everything inside."""

from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from calibrant.files import whole_or_not_at_all
from calibrant.report.names import clean
from calibrant.report.packages import require_report_packages
from calibrant_lab.names import SHIFTED, TABLES, TableName
from calibrant_lab.paper import store_content as content
from calibrant_lab.paper.footnotes import footnotes, footnotes_on_significance, title
from calibrant_lab.paper.formats import SIGNIFICANCE
from calibrant_lab.paper.inferred import Inferred, inferred
from calibrant_lab.paper.layout import (
    ALIGNMENT,
    COMPARISON_ALIGNMENT,
    COMPARISON_COLUMNS,
    columns,
    comparison_lines,
    lines,
)
from calibrant_lab.paper.tabulated import Tabulated, tabulate
from calibrant_lab.trials.protocol import Plan
from calibrant_lab.trials.store import Store


def write_store_report(path: Path, store: Store) -> None:
    """Write the page of :func:`render_store` to a file: whole, or not at all.

    Args:
        path: Of the page.
        store: What it is about.
    """
    page = render_store(store)
    with whole_or_not_at_all(path) as temporary:
        temporary.write_bytes(page.encode())


def render_store(store: Store) -> str:
    """Return one HTML page: no script, nothing to load, the same bytes for the same trials.

    What belongs together, and which profile it was run with, is found from the trials themselves. What was not run is
    left out, or said to be missing.

    Args:
        store: Trials of any number of recipes, finished or not.
    """
    found = content.entries(store)
    if not found:
        raise ValueError(f"{store.folder} holds no trials: give the --runs of an earlier calibrant reproduce")
    require_report_packages()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from calibrant.report.content import percent

    groups = inferred(store)
    css = resources.files("calibrant.report").joinpath("page.css").read_text(encoding="utf-8")
    template = resources.files("calibrant_lab.paper").joinpath("store.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent}
    return environment.from_string(template).render(
        css=Markup(css),  # noqa: S704 (our own file)
        title=_title(groups, len(found)),
        lead=f"{clean(store.folder.name)}: {len(found):,} trial{'s' if len(found) != 1 else ''}",
        facts=content.facts(found),
        groups=[_group(group, store, f"g{place}") for place, group in enumerate(groups, start=1)],
        cost=_cost(groups, store),
        environments=content.environments(found),
        failures=content.failures(found),
        trials=content.trial_rows(found),
        footer=f"Made by Calibrant {metadata.version('calibrant')} from stored results alone.",
    )


def _title(groups: Sequence[Inferred], trials: int) -> str:
    names = list(dict.fromkeys(group.protocol.base.recipe for group in groups))
    if not names:
        return f"{trials} trial{'s' if trials != 1 else ''}, none of them finished"
    return f"Experiments on {', '.join(names[:-1])}{' and ' if len(names) > 1 else ''}{names[-1]}"


def _group(group: Inferred, store: Store, name: str) -> dict[str, Any]:
    from calibrant.report.svg import inline_svg
    from calibrant_lab.paper.figures import CAPTIONS, DRAWN

    plan = group.begun("table1") or group.table("table1")
    missing: list[str] = []
    profile = group.profile_name
    tables = [_table(tabulate(table, one, store, profile=profile)) for table, one in _tables(group, plan).items()]
    drawn = []
    drawings = DRAWN if plan.base.recipe not in SHIFTED else {**DRAWN, "figure6": _figure6}
    for key, draw in drawings.items():
        heading, caption = CAPTIONS[key]
        try:
            svg = inline_svg(draw(plan, store), f"{name}{key}", f"{heading}. {caption}")
        except ValueError as error:  # not run, or its files were not kept: the page says which
            missing.append(clean(str(error)))
        else:
            drawn.append({"number": key.removeprefix("figure"), "heading": heading, "caption": caption, "svg": svg})
    return {
        "id": name, "heading": content.heading(plan.base), "profile": profile, "tables": tables,
        "figures": drawn, "missing": missing,
    }  # fmt: skip


def _figure6(plan: Plan, store: Store) -> Any:
    """From what `reproduce figure6` has kept: nothing is evaluated here."""
    from calibrant_lab.paper.figures import NotRunError
    from calibrant_lab.shift.evaluation import kept_shifts
    from calibrant_lab.shift.figure import figure6

    kept = kept_shifts(plan, store)
    if not any(kept.values()):
        raise NotRunError("Figure 6 needs networks that were tried on worse images: reproduce figure6")
    return figure6(kept)


def _tables(group: Inferred, first: Plan) -> dict[TableName, Plan]:
    """Table 1, and each later one if it has trials that those before it do not have."""
    found: dict[TableName, Plan] = {"table1": first}
    for name in TABLES[1:]:
        known = {trial for plan in found.values() for trial in plan.needed}
        plan = group.begun(name)
        if plan and any(trial in group.protocol.results and trial not in known for trial in plan.needed):
            found[name] = plan
    return found


def _table(table: Tabulated) -> dict[str, Any]:
    parts = [(title(table), columns(table), list(lines(table)), ALIGNMENT, footnotes(table))]
    if table.comparisons:
        compared = list(comparison_lines(table))
        notes = footnotes_on_significance(table)
        parts.append((SIGNIFICANCE, list(COMPARISON_COLUMNS), compared, COMPARISON_ALIGNMENT, notes))
    keys = ("title", "columns", "lines", "alignment", "notes")
    first, *others = (dict(zip(keys, part, strict=True)) for part in parts)
    return {**first, "significance": others}


def _cost(groups: Sequence[Inferred], store: Store) -> Any:
    """Figure 3 of all recipes at once, where there are several."""
    from calibrant.report.svg import inline_svg
    from calibrant_lab.paper.figures import CAPTIONS, NotRunError, figure3

    if len(groups) < 2:
        return None
    plans = [group.table("table1") for group in groups]
    try:
        return inline_svg(figure3(plans, store), "cost", ". ".join(CAPTIONS["figure3"]))
    except NotRunError:
        return None
