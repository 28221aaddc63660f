"""Live view of a running sweep."""

import math
import shlex
import statistics
import time
from collections.abc import Collection, Iterable, Set
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from calibrant.report.formats import counted
from calibrant_lab.sweeps.protocol import Plan, Results, best_of, mean_scores
from calibrant_lab.trials.configuration import Configuration, label
from calibrant_lab.trials.listing import DIGITS
from calibrant_lab.trials.quantities import duration, percent
from calibrant_lab.trials.store import Progress, Store

SECONDS_BETWEEN_LOOKS = 1.0


class LiveView:
    """Counts, time left, running trials and the best so far, if the output is a terminal.

    At the end it lists failed trials, on a terminal or not. ``total`` is the number of trials, which a plan does not
    know before its searches have ended.
    """

    def __init__(self, store: Store, console: Console, *, total: int | None = None) -> None:
        self._store = store
        self._console = console
        self._total = total
        self._failed: Set[Configuration] = frozenset()
        self._looked = -math.inf
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._list_failures()

    def show(self, plan: Plan, results: Results, failed: Set[Configuration]) -> None:
        """Redraw the view."""
        self._failed = frozenset(failed)
        if self._live is not None and time.monotonic() - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._live.update(self.render(plan, results, failed), refresh=True)
            self._looked = time.monotonic()

    def render(self, plan: Plan, results: Results, failed: Set[Configuration]) -> RenderableType:
        """Render a state of the sweep."""
        missing = plan.missing(results.keys() | failed)
        running = {one: trial.progress() for one in missing if (trial := self._store.trial(one)).is_locked()}
        done = [one for one in plan.needed if one in results]
        lost = sum(one in failed for one in plan.needed)
        total = max(len(plan.needed), self._total or 0) if missing else len(plan.needed)
        to_do = total - len(done) - lost - len(running)
        counts = f"[green]{len(done)} done[/], [cyan]{len(running)} running[/], "
        counts += f"[red]{lost} failed[/], " if lost else ""
        seconds = self._seconds_left(done, running.values(), to_do)
        left = "" if math.isnan(seconds) else f"   about {duration(seconds)} left"
        head = Table.grid(padding=(0, 1))
        # Running trials count by their progress.
        filled = len(done) + lost + sum(progress.share for progress in running.values() if progress)
        head.add_row(f"{counts}{to_do} to do", ProgressBar(total=max(1, total), completed=filled, width=30), left)
        parts = [head, _running(running) if running else None, _best(plan, results)]
        return Group(*(part for part in parts if part is not None))

    def _seconds_left(self, done: Iterable[Configuration], running: Collection[Progress | None], to_do: int) -> float:
        """Estimated from the mean cost of a trial and the number of running trials; NaN if no cost is known yet."""
        known = [progress for progress in running if progress is not None and progress.share > 0]
        costs = [result.cost.seconds for one in done if (result := self._store.result(one)) is not None]
        costs = costs or [progress.seconds + progress.seconds_left for progress in known]
        if not costs:
            return math.nan
        fresh = to_do + len(running) - len(known)
        rest = sum(progress.seconds_left for progress in known) + fresh * statistics.fmean(costs)
        return rest / max(1, len(running))

    def _list_failures(self) -> None:
        if count := len(self._failed):
            self._console.print(f"[red]{counted(count, 'trial')} failed[/]:", highlight=False)
        folder = shlex.quote(str(self._store.folder))
        for one in sorted(self._failed, key=lambda one: (label(one), one.seed)):
            trial = self._store.trial(one)
            lines = (trial.failure() or "reason unknown").strip().splitlines()
            line = f"  {escape(label(one))}, seed {one.seed}: {escape(lines[-1])}\n"
            line += f"    [dim]calibrant runs show {trial.identity[:DIGITS]} --runs {escape(folder)}[/]"
            self._console.print(line, highlight=False, soft_wrap=True)


def _running(running: dict[Configuration, Progress | None]) -> Table:
    table = _table("running", "seed", "epoch", "accuracy %", "ECE %", "left")
    for one, progress in running.items():
        if progress is None:
            table.add_row(escape(label(one)), str(one.seed), "starting", "", "", "")
            continue
        epoch = min(progress.of, math.floor(progress.epochs) + 1)
        table.add_row(
            escape(label(one)), str(one.seed), f"{epoch} of {progress.of}", percent(progress.accuracy),
            percent(progress.ece), "" if math.isnan(progress.seconds_left) else duration(progress.seconds_left),
        )  # fmt: skip
    return table


def _best(plan: Plan, results: Results) -> Table | None:
    """The current choice of every method: the best score among networks accurate enough, or the most accurate."""
    first, select = plan.baselines[0], plan.sweep.select
    baseline = mean_scores(plan.baselines, results).get(first)
    if baseline is None:
        return None
    table = _table("best so far, on the validation set", "tried", "accuracy %", select)
    table.add_row(escape(label(first)), "", percent(baseline.accuracy), f"{baseline.score:.4f}")
    for searches in dict.fromkeys(row.searches for row in plan.rows if row.searches):
        candidates = dict.fromkeys(one for search in searches for one in search.candidates)
        tried = [one for one in candidates if one in results]
        scores = mean_scores(tried, results)
        best, within = best_of(scores, baseline, plan.sweep.tolerance)
        if best is not None:
            name, found = escape(label(best)) + ("" if within else ", not accurate enough"), scores[best]
            table.add_row(name, f"{len(tried)} of {len(candidates)}", percent(found.accuracy), f"{found.score:.4f}")
    return table


def _table(first: str, *others: str) -> Table:
    numbers = (Column(name, justify="right", no_wrap=True) for name in others)
    return Table(Column(first, no_wrap=True), *numbers, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
