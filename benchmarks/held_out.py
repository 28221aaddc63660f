"""Scores of networks on the held-out images of their calibration objective, and on new images.

    python -m benchmarks.held_out --data-dir FOLDER --runs runs/mnist --out results/mnist

For finished trials of ``calibrant reproduce table1`` and ``table2`` at profile cpu whose networks were kept. The NLL
never sees the images held out, but an objective with labels may learn them.
"""

import argparse
import statistics
from pathlib import Path

import torch
from rich.console import Console

import calibrant as cal
from calibrant.files import whole_or_not_at_all
from calibrant_lab.models.weights import load_weights
from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.score_table import mean_and_spread
from calibrant_lab.scores import BINS, Predicted
from calibrant_lab.sweeps.protocol import Row, plan
from calibrant_lab.sweeps.run import validated
from calibrant_lab.trials.fit import predict, prepare
from calibrant_lab.trials.store import WEIGHTS, Store, Trial

LAST = 10  # epochs that shares of batches are taken from


def main() -> None:
    """Predict, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=("digits", "mnist"), default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    store = Store(arguments.runs)
    sweeps = [paper_sweep(table, arguments.recipe, "cpu") for table in ("table1", "table2")]
    table1, table2 = (plan(sweep, validated(store, sweep)) for sweep in sweeps)
    rows = [*table1.rows[1:], *table2.rows[2:]]
    lines = [
        "| | n | held out: accuracy % | held out: ECE % | test: accuracy % | test: ECE % | silent batches % |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [line for row in rows if (line := _line(row, store, arguments.data_dir)) is not None]
    text = (
        f"# {arguments.recipe}: scores on held-out and on new images\n\n"
        f"Mean ± standard deviation over seeds, ECE in {BINS} bins. Silent: batches with an objective of 0 or less, "
        f"where rooted ESD gives no gradient; mean of the last {LAST} epochs.\n\n" + "\n".join(lines) + "\n"
    )
    Console().out(text, highlight=False)
    with whole_or_not_at_all(arguments.out / f"{arguments.recipe}-held-out.md") as temporary:
        temporary.write_text(text, encoding="utf-8")


def _line(row: Row, store: Store, data: Path | None) -> str | None:
    trials = [store.trial(one) for one in row.trials if store.result(one) is not None]
    trials = [trial for trial in trials if (trial.folder / WEIGHTS).exists()]
    if not trials:
        return None
    scores = [(*_scores(_held_out(trial, data)), *_scores(trial.predicted("test"))) for trial in trials]
    cells = [mean_and_spread(column) for column in zip(*scores, strict=True)]
    silent = [entry.get("train_silent") for trial in trials for entry in trial.history()[-LAST:]]
    known = [share for share in silent if share is not None]
    cells.append(f"{100 * statistics.fmean(known):.0f}" if known else "")
    return f"| {row.name} | {len(trials)} | {' | '.join(cells)} |"


def _held_out(trial: Trial, data: Path | None) -> Predicted:
    # Those of ESD: the NLL on the reduced split leaves the same images alone.
    prepared = prepare(trial.configuration.replaced({"method": "esd", "reduced_split": False}), data)
    load_weights(prepared.classifier.model, trial.folder / WEIGHTS)
    if prepared.loaders.calibration is None:
        raise ValueError("nothing is held out")
    return predict(prepared.classifier.model, prepared.loaders.calibration)


def _scores(predicted: Predicted) -> tuple[float, float]:
    found = cal.metrics.evaluate(logits=predicted.logits, target=predicted.target, bins=BINS)
    return 100 * found.accuracy, 100 * found.ece


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
