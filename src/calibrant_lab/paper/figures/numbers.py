"""The data of the figures as CSV, in shares and seconds, one line per value."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from calibrant.report.figures import cumulated
from calibrant_lab.paper.figures.cost import row_costs
from calibrant_lab.paper.figures.cumulative import as_trained_and_scaled
from calibrant_lab.paper.figures.parts import label_of
from calibrant_lab.paper.tables.formats import csv_of, subject_of
from calibrant_lab.shift.evaluation import ShiftResult
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.store import Store

Lines = Iterator[dict[str, object]]
CURVES = ("train_accuracy", "train_ece", "test_accuracy", "test_ece")


def numbers_of(figure: str, plan: Plan, store: Store) -> str:
    """The data of a figure other than Figure 6."""
    makers: dict[str, Callable[[Plan, Store], Lines]] = {
        "figure1": _curves, "figure2": _search, "figure3": _cost, "figure4": _cumulative, "figure5": _search,
    }  # fmt: skip
    return csv_of(subject_of(plan.sweep) | line for line in makers[figure](plan, store))


def shift_csv(sweep: Sweep, rows: Mapping[str, Sequence[ShiftResult]]) -> str:
    """Scores of the networks of every row under every corruption and severity; 0 is the clean test set (Figure 6)."""
    return csv_of(
        subject_of(sweep)
        | {"row": name.removeprefix("+ "), "network": place, "images": result.images, "corruption": corruption,
           "severity": severity, **{key: f"{value:.6g}" for key, value in asdict(score).items()}}
        for name, results in rows.items()
        for place, result in enumerate(results)
        for corruption, scores in ({"none": (result.clean,)} | result.corrupted).items()
        for severity, score in enumerate(scores, start=int(corruption != "none"))
    )  # fmt: skip


def _curves(plan: Plan, store: Store) -> Lines:
    """Scores of every finished network of a plan's rows after every epoch (Figure 1)."""
    for row in plan.rows:
        for trial in row.trials:
            for epoch, scores in enumerate(store.trial(trial).history() if store.result(trial) else [], start=1):
                found = {name: f"{scores.get(name, math.nan):.6g}" for name in CURVES}
                yield {"row": label_of(row), "seed": trial.seed, "epoch": epoch, **found}


def _search(plan: Plan, store: Store) -> Lines:
    """Scores of every finished candidate of the searches (Figures 2 and 5)."""
    for row in plan.rows:
        for search in row.searches:
            for trial in search.candidates:
                if (result := store.result(trial)) is None:
                    continue
                chosen = search.chosen is not None and trial == search.chosen.replaced({"seed": trial.seed})
                yield {
                    "row": label_of(row), "option": search.option, "value": trial.option(search.option),
                    "seed": trial.seed, "chosen": chosen, "validation_accuracy": result.validation["accuracy"],
                    "validation_ece": result.validation["ece"], "test_ece": result.test["ece"],
                }  # fmt: skip


def _cost(plan: Plan, store: Store) -> Lines:
    """Cost of every finished run of a row, and whether one tuned network needs it (Figure 3)."""
    for row in row_costs(plan, store):
        for run in row.runs:
            yield {
                "row": row.name, "trial": run.configuration.identity, "seed": run.configuration.seed,
                "needed_for_one_tuned_network": run in row.tuning, **asdict(run.cost),
            }  # fmt: skip


def _cumulative(plan: Plan, store: Store) -> Lines:
    """Cumulative accuracy and confidence at 200 positions of the sorted test set, including the last (Figure 4)."""
    names = ("share_of_samples", "confidence", "cumulative_accuracy", "cumulative_confidence", "chance")
    for network, predicted in as_trained_and_scaled(plan, store).items():
        columns = cumulated(predicted)
        last = len(columns[0]) - 1
        for place in sorted({*range(0, last, max(1, last // 200)), last}):
            values = (f"{column[place]:.6g}" for column in columns)
            yield {"network": network, **dict(zip(names, values, strict=True))}
