"""Fine-tune a small text model for natural language inference with the NLL, and with the NLL and ESD.

    python examples/nli_trials.py --recipe snli --data-dir snli_1.0 --model all-MiniLM-L6-v2

Unlike ``snli_minilm.py``, which is a loop of Hugging Face's, this runs Calibrant's own recipe and keeps each network as
a trial in --runs: the same command again goes on with what is missing. Nothing is searched: lambda is 1. Both see the
same nine tenths of the training pairs, so that they differ in nothing but the objective.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrant.files import whole_or_not_at_all
from calibrant_lab.configuration import Configuration
from calibrant_lab.json_files import read_json
from calibrant_lab.paper.formats import render
from calibrant_lab.paper.tabulated import tabulate
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.executors import LocalExecutor
from calibrant_lab.trials.live import LiveView
from calibrant_lab.trials.protocol import Plan, Row
from calibrant_lab.trials.runner import run
from calibrant_lab.trials.store import DATA, Store


def main() -> None:
    """Run, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=("snli", "anli"), default="snli")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", required=True, help="name on the hub, or folder")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    base = RECIPES[arguments.recipe].replaced(
        {
            "model": arguments.model, "epochs": arguments.epochs, "learning_rate": 5e-5, "batch_size": 32,
            "calibration_batch_size": 64, "calibration_every": 2,
        }
    )  # fmt: skip
    changes: dict[str, dict[str, Any]] = {"NLL, reduced split": {"reduced_split": True}, "+ ESD": {"objective": "esd"}}
    plan = Plan(base, tuple(Row(name, _seeds(base.replaced(one), arguments.seeds)) for name, one in changes.items()))
    store = Store(arguments.runs)
    with LiveView(store, Console(stderr=True), total=len(plan.needed)) as view:
        run(lambda *_: plan, store, LocalExecutor(arguments.runs, arguments.data_dir), view)
    if missing := plan.missing(store.results().keys()):
        sys.exit(f"{len(missing)} of {len(plan.needed)} trials have no result: the same command again runs them")
    table = tabulate("table1", plan, store, profile="none, λ = 1 and nothing searched", ensembles=False)
    data = read_json(store.trial(plan.rows[1].trials[0]).folder / DATA)
    text = f"{data['train']:,} pairs to train on and {data['calibration']:,} held out.\n\n" + render(table, "markdown")
    Console().out(text, highlight=False)
    with whole_or_not_at_all(arguments.out / f"{arguments.recipe}.md") as temporary:
        temporary.write_text(text, encoding="utf-8")


def _seeds(configuration: Configuration, seeds: int) -> tuple[Configuration, ...]:
    return tuple(configuration.replaced({"seed": seed}) for seed in range(seeds))


if __name__ == "__main__":
    main()
