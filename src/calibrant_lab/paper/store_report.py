"""One HTML page for a whole store: the tables and figures of its sweeps, its trials and failures."""

from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from calibrant.files import whole_or_not_at_all
from calibrant.report.names import clean
from calibrant.report.packages import require_report_packages
from calibrant_lab import plugins
from calibrant_lab.paper import store_content as content
from calibrant_lab.paper.tables.build import tabulate
from calibrant_lab.paper.tables.lines import parts
from calibrant_lab.sweeps.protocol import Plan, plan
from calibrant_lab.sweeps.run import recorded, validated
from calibrant_lab.sweeps.sweep import FOLDER
from calibrant_lab.trials.runs import look, order
from calibrant_lab.trials.store import Store


def write_store_report(path: Path, store: Store) -> None:
    """Write the page of :func:`render_store` to a file: whole, or not at all."""
    page = render_store(store)
    with whole_or_not_at_all(path) as temporary:
        temporary.write_bytes(page.encode())


def render_store(store: Store) -> str:
    """Return one HTML page: no script, nothing to load, the same bytes for the same trials.

    Tables and figures are those of the sweeps that the store has recorded. What was not run is said to be missing.
    """
    found = [look(trial) for trial in store.trials()]
    # As `calibrant runs list` has them; what cannot be read comes last.
    found.sort(key=lambda run: (0, order(run.configuration)) if run.configuration else (1, (run.trial.folder.name,)))
    if not found:
        raise ValueError(f"{store.folder} holds no trials: give the --runs of an earlier calibrant reproduce")
    require_report_packages()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from calibrant.report.content import percent

    groups = _groups([plan(sweep, validated(store, sweep)) for sweep in recorded(store)])
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
        trials=[content.trial_row(run) for run in found],
        footer=f"Made by Calibrant {metadata.version('calibrant')} from stored results alone.",
    )


def _title(groups: Sequence[list[Plan]], trials: int) -> str:
    names = list(dict.fromkeys(plugins.short(group[0].base.recipe) for group in groups))
    if not names:
        return f"{trials} trial{'s' if trials != 1 else ''} without a sweep"
    return f"Experiments on {', '.join(names[:-1])}{' and ' if len(names) > 1 else ''}{names[-1]}"


def _groups(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Plans with recipe and settings in common, those of one batch size first: figures are drawn of them."""
    groups: dict[Any, list[Plan]] = {}
    for one in sorted(plans, key=lambda one: one.sweep.batch_divisors != (1,)):
        groups.setdefault(one.base, []).append(one)
    return list(groups.values())


def _group(group: list[Plan], store: Store, name: str) -> dict[str, Any]:
    from calibrant.report.svg import inline_svg
    from calibrant_lab.paper.figures import DRAWN, caption

    first, missing, drawn = group[0], [], []
    for key, draw in DRAWN.items():
        if key == "figure6" and not first.base.of_recipe.shift:
            continue
        heading, text = caption(key, first.sweep)
        try:
            svg = inline_svg(draw(first, store), f"{name}{key}", f"{heading}. {text}")
        except ValueError as error:  # not run, or its files were not kept: the page says which
            missing.append(clean(str(error)))
        else:
            drawn.append({"number": key.removeprefix("figure"), "heading": heading, "caption": text, "svg": svg})
    epochs = first.base.settings.epochs
    return {
        "id": name, "heading": clean(f"{first.sweep.subject}, {epochs} epoch{'s' if epochs != 1 else ''}"),
        "sweeps": [clean(f"{FOLDER}/{one.sweep.record_name}") for one in group],
        "tables": [parts(tabulate(one, store)) for one in group], "figures": drawn, "missing": missing,
    }  # fmt: skip


def _cost(groups: Sequence[list[Plan]], store: Store) -> Any:
    """Figure 3 of all recipes at once, where there are several."""
    from calibrant.report.svg import inline_svg
    from calibrant_lab.paper.figures import caption
    from calibrant_lab.paper.figures.cost import figure3
    from calibrant_lab.paper.figures.parts import NotRunError

    if len(groups) < 2:
        return None
    try:
        plans = [group[0] for group in groups]
        return inline_svg(figure3(plans, store), "cost", ". ".join(caption("figure3", plans[0].sweep)))
    except NotRunError:
        return None
