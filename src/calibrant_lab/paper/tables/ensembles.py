"""Deep ensembles, from stored predictions."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from calibrant_lab.scores import Predicted, repaired, scored


def ensemble(members: Iterable[tuple[Predicted, Predicted]], columns: Sequence[str]) -> dict[str, float]:
    """Score a deep ensemble: the mean of the networks' probabilities (Lakshminarayanan et al., NeurIPS 2017).

    The validation set of one network may be training data of another, so each network is scaled on its own validation
    set and the scaled probabilities are averaged. All networks must have the same test set.
    """
    networks = list(members)
    if len(networks) < 2:
        raise ValueError(f"an ensemble needs at least two networks, got {len(networks)}: run more seeds")
    target = networks[0][1].target
    if not all(torch.equal(test.target, target) for _, test in networks):
        raise ValueError(
            "the networks of an ensemble need the same test set in the same order, but their targets differ: "
            "use trials of the same data"
        )

    def averaged(repair: str) -> Tensor | None:
        total = torch.zeros(())
        for validation, test in networks:
            if (logits := repaired(repair, validation, test)) is None:
                return None
            total = total + logits.double().softmax(1)
        return (total / len(networks)).log()

    return scored(columns, target, averaged)
