"""Deep ensembles, from stored predictions."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from calibrant_lab.scores import Predicted, repaired, score


def ensemble(members: Iterable[tuple[Predicted, Predicted]], columns: Sequence[str]) -> dict[str, float]:
    """Score a deep ensemble: the mean of the networks' probabilities (Lakshminarayanan et al., NeurIPS 2017).

    The validation set of one network may be training data of another, so each network is scaled on its own validation
    set and the scaled probabilities are averaged. All networks must have the same test set.
    """
    repairs = list(dict.fromkeys(column.partition("+")[2] for column in columns))
    totals: dict[str, Tensor | None] = {}
    target, count = torch.empty(0), 0
    for validation, test in members:
        if count and not torch.equal(test.target, target):
            raise ValueError(
                "the networks of an ensemble need the same test set in the same order, but their targets differ: "
                "use trials of the same data"
            )
        target = test.target
        for repair in repairs:
            logits = repaired(repair, validation, test)
            voted = None if logits is None else logits.double().softmax(1)
            before = totals.get(repair) if count else torch.zeros(())
            totals[repair] = None if voted is None or before is None else before + voted
        count += 1
    if count < 2:
        raise ValueError(f"an ensemble needs at least two networks, got {count}: run more seeds")
    found = {}
    for column in columns:
        metric, _, repair = column.partition("+")
        total = totals[repair]
        found[column] = float("nan") if total is None else score(metric, Predicted((total / count).log(), target))
    return found
