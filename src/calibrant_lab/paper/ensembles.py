"""Deep ensembles and MC dropout, from the predictions that trials have kept."""

import math
from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor

import calibrant as cal
from calibrant_lab.outcome import BINS, Outcome, Predicted, judge
from calibrant_lab.trials.store import Trial


def ensemble(members: Iterable[tuple[Predicted, Predicted]]) -> Outcome:
    """Score networks that vote: the mean of their probabilities (Lakshminarayanan et al., NeurIPS 2017).

    The validation set of a network is data that it has not seen, but others may have: each is scaled by its own, and
    the scaled probabilities are averaged. So the ensemble has no temperature of its own, and its outcome NaN for it.

    Args:
        members: Validation and test predictions of each; the test set must be one and the same.
    """
    total: tuple[Tensor, Tensor | None, Tensor] | None = None
    target, count = torch.empty(0), 0
    for validation, test in members:
        plain, tempered, vector = _probabilities(validation, test)
        if total is None:
            total, target = (plain, tempered, vector), test.target
        elif not torch.equal(test.target, target):
            raise ValueError(
                "the networks of an ensemble need one test set in one order, but their targets differ: "
                "use trials of the same data"
            )
        else:
            both = None if total[1] is None or tempered is None else total[1] + tempered
            total = (total[0] + plain, both, total[2] + vector)
        count += 1
    if total is None or count < 2:
        raise ValueError(f"an ensemble needs two or more networks, got {count}: run more seeds")
    plain, tempered, vector = total
    voted = cal.metrics.evaluate(probabilities=plain / count, target=target, bins=BINS)
    scaled = cal.metrics.evaluate(probabilities=vector / count, target=target, bins=BINS)
    ece_temperature = math.nan
    if tempered is not None:
        ece_temperature = cal.metrics.evaluate(probabilities=tempered / count, target=target, bins=BINS).ece
    return Outcome(voted.accuracy, voted.ece, voted.nll, math.nan, ece_temperature, scaled.accuracy, scaled.ece)


def ensemble_of(trials: Iterable[Trial]) -> Outcome:
    """The ensemble of finished trials."""
    return ensemble((trial.predicted("validation"), trial.predicted("test")) for trial in trials)


def has_predictions(trial: Trial) -> bool:
    """Whether a trial kept its predictions: a store that was made small may hold the scores alone."""
    return all((trial.folder / f"{part}.npz").exists() for part in ("validation", "test"))


def with_dropout(trial: Trial) -> Outcome:
    """One network, its probabilities averaged over passes with dropout on (Gal and Ghahramani, ICML 2016)."""
    return judge(trial.predicted("validation", sampled=True), trial.predicted("test", sampled=True))


def _probabilities(validation: Predicted, test: Predicted) -> tuple[Tensor, Tensor | None, Tensor]:
    """As trained, after temperature scaling if there is a best temperature, and after vector scaling."""
    logits = test.logits.double()
    vector = cal.posthoc.VectorScaling().fit(*validation)
    tempered = None
    with suppress(ValueError):  # answers that are all right, or no better than chance, have no best temperature
        tempered = cal.posthoc.TemperatureScaling().fit(*validation)(logits).softmax(1)
    return logits.softmax(1), tempered, vector(logits).softmax(1)
