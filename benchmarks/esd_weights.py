"""ESD at several weights with every seed, where the protocol tries each weight with one: what would have been chosen?

    python -m benchmarks.esd_weights --data-dir FOLDER --runs runs/mnist --out results/mnist

Trials are those of ``calibrant reproduce`` at profile cpu, and are kept where it keeps its own.
"""

import argparse
import os
import statistics
from pathlib import Path

from rich.console import Console

from calibrant.experiments.configuration import Configuration
from calibrant.experiments.recipes import RECIPES
from calibrant.experiments.table import mean_and_spread
from calibrant.experiments.trials.executors import LocalExecutor
from calibrant.experiments.trials.live import LiveView
from calibrant.experiments.trials.protocol import PROFILES, Plan, Row, qualifies, with_profile
from calibrant.experiments.trials.runner import run
from calibrant.experiments.trials.store import Result, Store, Validated
from calibrant.files import whole_or_not_at_all


def main() -> None:
    """Run what is missing, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    profile = PROFILES["cpu"]
    base = with_profile(RECIPES[arguments.recipe], profile)
    rows = [Row("NLL", _seeds(base, profile.seeds))]
    for weight in arguments.weights:
        esd = base.replaced({"objective": "esd", "weight": weight})
        rows.append(Row(f"+ ESD, λ = {weight:g}", _seeds(esd, profile.seeds)))
    plan, store = Plan(base, tuple(rows)), Store(arguments.runs)
    executor = LocalExecutor(store.folder, arguments.data_dir, workers=arguments.workers, accelerator="cpu")
    with LiveView(store, Console(stderr=True), total=len(plan.needed)) as view:
        run(lambda *_: plan, store, executor, view)
    text = _page(plan, store)
    Console().out(text, highlight=False)
    with whole_or_not_at_all(arguments.out / f"{arguments.recipe}-esd-weights.md") as temporary:
        temporary.write_text(text, encoding="utf-8")


def _seeds(configuration: Configuration, seeds: int) -> tuple[Configuration, ...]:
    return tuple(configuration.replaced({"seed": seed}) for seed in range(seeds))


def _page(plan: Plan, store: Store) -> str:
    found = {row.name: [store.trial(trial).result() for trial in row.trials] for row in plan.rows}
    lines = [
        "| | validation accuracy % | validation ECE % | test accuracy % | test ECE % | test ECE % after TS |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    baseline = _mean(found["NLL"])
    for name, results in found.items():
        scores = [
            (one.validation.accuracy, one.validation.ece, one.outcome.accuracy, one.outcome.ece,
             one.outcome.ece_temperature)
            for one in results
        ]  # fmt: skip
        cells = [mean_and_spread([100 * value for value in column]) for column in zip(*scores, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    within = [name for name in found if name != "NLL" and qualifies(_mean(found[name]), baseline)]
    chosen = min(within, key=lambda name: _mean(found[name]).ece, default=None)
    rule = "Chosen by the protocol's rule, applied to the means over seeds instead of to one seed"
    return (
        f"# ESD on {plan.base.recipe} by weight, {len(plan.rows[0].trials)} seeds each\n\n"
        f"{plan.base.model}, {plan.base.epochs} epochs, profile cpu. Mean ± standard deviation over seeds.\n\n"
        + "\n".join(lines)
        + f"\n\n{rule}: {chosen or 'none'}.\n"
    )


def _mean(results: list[Result]) -> Validated:
    return Validated(
        statistics.fmean(one.validation.accuracy for one in results),
        statistics.fmean(one.validation.ece for one in results),
    )


if __name__ == "__main__":
    main()
