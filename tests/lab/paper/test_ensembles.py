"""Ensembles and dropout: against averages taken by hand."""

import math

import numpy as np
import pytest
import torch

from calibrant.posthoc import TemperatureScaling, VectorScaling
from calibrant_lab.paper.tables.ensembles import ensemble
from calibrant_lab.scores import KEPT, Predicted, scores_of
from tests.lab.stores import ece, noisy


def members(count: int) -> list[tuple[Predicted, Predicted]]:
    return [
        (noisy(300, 3, target_seed=1 + seed, seed=seed), noisy(400, 3, target_seed=0, seed=50 + seed))
        for seed in range(count)
    ]


def test_probabilities_are_averaged_each_network_scaled_by_its_own_validation_set() -> None:
    networks = members(3)
    found = ensemble(networks, KEPT)
    target = networks[0][1].target.numpy()
    plain = np.mean([test.logits.double().softmax(1).numpy() for _, test in networks], axis=0)
    tempered, vector = (
        np.mean(
            [np.asarray(method(strict=True).fit(*held).predict_proba(test.logits.double())) for held, test in networks],
            axis=0,
        )
        for method in (TemperatureScaling, VectorScaling)
    )
    assert found["accuracy"] == (plain.argmax(1) == target).mean()
    assert found["ece"] == pytest.approx(ece(plain, target), abs=1e-9)
    assert found["nll"] == pytest.approx(-np.log(plain[np.arange(400), target]).mean())
    assert found["ece+temperature"] == pytest.approx(ece(tempered, target), abs=1e-9)
    assert found["accuracy+vector"] == (vector.argmax(1) == target).mean()
    assert found["ece+vector"] == pytest.approx(ece(vector, target), abs=1e-8)
    assert found["accuracy"] > max(scores_of(*one)["accuracy"] for one in networks)


@pytest.mark.parametrize("place", [0, 1])
def test_a_member_without_a_best_temperature_leaves_that_column_empty(place: int) -> None:
    networks = members(2)
    target = torch.arange(40) % 3
    networks[place] = (Predicted(10.0 * torch.eye(3)[target], target), networks[place][1])
    found = ensemble(networks, KEPT)
    assert math.isnan(found["ece+temperature"])
    assert math.isfinite(found["ece+vector"])


def test_other_targets_and_too_few_networks_are_refused() -> None:
    (held, test), other = members(2)
    turned = Predicted(other[1].logits.flip(0), other[1].target.flip(0))
    with pytest.raises(ValueError, match="targets"):
        ensemble([(held, test), (other[0], turned)], KEPT)
    for few in ([], [(held, test)]):
        with pytest.raises(ValueError, match=f"got {len(few)}"):
            ensemble(few, KEPT)
