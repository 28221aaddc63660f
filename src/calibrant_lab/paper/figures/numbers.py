"""The numbers behind the figures, as CSV."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from calibrant_lab.paper.figures.cost import row_costs
from calibrant_lab.paper.figures.cumulative import as_trained_and_scaled
from calibrant_lab.paper.tables.formats import csv_of
from calibrant_lab.shift.evaluation import ShiftResult, ShiftScore
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.store import Store

CURVES = ("train_accuracy", "train_ece", "test_accuracy", "test_ece")


def numbers_of(figure: str, plan: Plan, store: Store) -> str:
    """The numbers that a figure, other than the sixth, is drawn from."""
    makers = {
        "figure1": curves_csv, "figure2": _search_csv, "figure3": _cost_csv, "figure4": _cumulative_csv,
        "figure5": _search_csv,
    }  # fmt: skip
    return makers[figure](plan, store)


def _search_csv(plan: Plan, store: Store) -> str:
    """Scores, as shares, of every finished candidate of the searches (Figures 2 and 5)."""

    def found() -> Iterator[dict[str, object]]:
        for row in plan.rows:
            for search in row.searches:
                for trial in search.candidates:
                    result = store.result(trial)
                    if result is None:
                        continue
                    chosen = search.chosen is not None and trial == search.chosen.replaced({"seed": trial.seed})
                    yield {
                        "row": row.name.removeprefix("+ "), "option": search.option,
                        "value": trial.option(search.option), "seed": trial.seed, "chosen": str(chosen).lower(),
                        "validation_accuracy": result.validation["accuracy"],
                        "validation_ece": result.validation["ece"], "test_ece": result.test["ece"],
                    }  # fmt: skip

    return csv_of(found())


def _cost_csv(plan: Plan, store: Store) -> str:
    """Seconds of every finished run of a row, and whether one tuned network needs it (Figure 3)."""
    return csv_of(
        {"row": cost.name, "needed_for_one_tuned_network": str(run in cost.tuning).lower(), **asdict(run)}
        for cost in row_costs(plan, store)
        for run in cost.runs
    )


def _cumulative_csv(plan: Plan, store: Store) -> str:
    """Cumulative accuracy and confidence at 200 places of the sorted test set (Figure 4)."""
    from calibrant.report.figures import cumulated

    def found() -> Iterator[dict[str, object]]:
        for name, predicted in as_trained_and_scaled(plan, store).items():
            share, threshold, accuracy, confidence, chance = cumulated(predicted)
            for place in range(0, len(share), max(1, len(share) // 200)):
                yield {
                    "network": name, "share_of_samples": f"{share[place]:.6g}", "confidence": f"{threshold[place]:.6g}",
                    "cumulative_accuracy": f"{accuracy[place]:.6g}",
                    "cumulative_confidence": f"{confidence[place]:.6g}", "chance": f"{chance[place]:.6g}",
                }  # fmt: skip

    return csv_of(found())


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
