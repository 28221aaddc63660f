"""The numbers behind the figures that no table and no export of trials has: curves, and scores under shift."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from calibrant_lab.paper.tables.formats import csv_of
from calibrant_lab.shift.evaluation import ShiftResult, ShiftScore
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.store import Store

CURVES = ("train_accuracy", "train_ece", "test_accuracy", "test_ece")


def curves_csv(plan: Plan, store: Store) -> str:
    """Accuracy and ECE, as shares, of every finished network of a plan's rows after every epoch (Figure 1)."""
    return csv_of(
        {"row": row.name, "seed": trial.seed, "epoch": epoch + 1,
         **{name: f"{scores.get(name, math.nan):.6g}" for name in CURVES}}
        for row in plan.rows
        for trial in row.trials
        if store.result(trial) is not None
        for epoch, scores in enumerate(store.trial(trial).history())
    )  # fmt: skip


def shift_csv(rows: Mapping[str, Sequence[ShiftResult]]) -> str:
    """Accuracy and ECE, as shares, under every corruption at every severity; 0 is the clean test set (Figure 6).

    Args:
        rows: By the name of a table's row, a result for each network.
    """
    return csv_of(
        {"row": name, "network": place, "images": result.images, "corruption": corruption, "severity": severity,
         **_scores(score)}
        for name, results in rows.items()
        for place, result in enumerate(results)
        for corruption, severity, score in _by_severity(result)
    )  # fmt: skip


def _by_severity(result: ShiftResult) -> list[tuple[str, int, ShiftScore]]:
    worse = [
        (name, severity, score)
        for name, scores in result.corrupted.items()
        for severity, score in enumerate(scores, start=1)
    ]
    return [("none", 0, result.clean), *worse]


def _scores(score: ShiftScore) -> dict[str, object]:
    return {name: f"{value:.6g}" for name, value in asdict(score).items()}
