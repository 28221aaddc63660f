"""Quadratic scaling against a general minimiser of the function in its docstring."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from calibrant.posthoc import QuadraticScaling, StructuredMatrixScaling
from tests.posthoc.data import nll, overconfident


def binary(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hits spread twice as far as misses, so that the right log-odds are a parabola."""
    draw = torch.Generator().manual_seed(seed)
    target = torch.randint(2, (samples,), generator=draw)
    logits = torch.randn(samples, generator=draw, dtype=torch.float64) * (1 + target) + target
    return 3 * logits, target


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("samples", [20, 500, 5000])
@pytest.mark.filterwarnings("ignore::calibrant.posthoc.FitWarning")
def test_the_coefficients_minimise_what_is_documented(samples: int, weighted: bool) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    logits, target = binary(samples, seed=samples)
    weight = np.random.default_rng(0).uniform(0.2, 3, samples) if weighted else np.ones(samples)
    scaling = QuadraticScaling().fit(logits, target, sample_weight=torch.tensor(weight))
    count = weight.sum()
    mixing = 1 / (count + 1)
    q = (logits / scaling.temperature_).sigmoid().numpy() * (1 - mixing) + mixing / 2
    z = np.log(q) - np.log1p(-q)
    sign = 2 * target.numpy() - 1

    def objective(found: npt.NDArray[np.float64]) -> float:
        a, b, c = found
        loss = np.logaddexp(0, -sign * (a * z**2 + b * z + c))
        return float(weight @ loss / count + 2 / count * (a**2 + (b - 1) ** 2 + c**2))

    best = optimize.minimize(objective, [0.0, 1.0, 0.0], method="BFGS", options={"gtol": 1e-9})
    assert objective(np.array(scaling.coefficients_)) <= best.fun + 1e-12
    np.testing.assert_allclose(scaling.coefficients_, best.x, atol=1e-5)
    a, b, c = scaling.coefficients_
    p = (1 - mixing) / (1 + np.exp(-(a * z**2 + b * z + c))) + mixing / 2
    np.testing.assert_allclose(scaling.predict_proba(logits)[:, 1].numpy(), p, atol=1e-12)
    np.testing.assert_allclose(scaling(logits).numpy(), np.log(p / (1 - p)), atol=1e-9)


def test_a_parabola_fits_scores_of_different_spread() -> None:
    logits, target = binary(4000, seed=1)
    new, new_target = binary(4000, seed=2)
    exact = (3 / 8 * (new / 3) ** 2 + new / 12 - 1 / 8 - np.log(2)).sigmoid()
    best = nll(torch.stack((1 - exact, exact), dim=1), new_target)
    found = nll(QuadraticScaling().fit(logits, target).predict_proba(new), new_target)
    line = nll(StructuredMatrixScaling().fit(logits, target).predict_proba(new), new_target)
    assert best < found < best + 0.01
    assert found < line - 0.01


def test_sure_predictions_are_never_certain() -> None:
    logits, target = binary(300, seed=3)
    rows = QuadraticScaling().fit(logits, target).predict_proba(torch.tensor([-1e30, 1e30], dtype=torch.float64))
    assert rows.min() > 1e-3


def test_more_than_two_classes_have_structured_matrix_scaling() -> None:
    logits, target = overconfident(500, 3, 2.0, seed=4)
    ours, theirs = QuadraticScaling().fit(logits, target), StructuredMatrixScaling().fit(logits, target)
    assert torch.equal(ours.predict_proba(logits), theirs.predict_proba(logits))
    with pytest.raises(TypeError, match="those of two classes, this was fitted on 3: use matrix"):
        _ = ours.coefficients_


def test_it_follows_a_folded_layer() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(6, 1)
    inputs = 3 * torch.randn(300, 6)
    target = torch.bernoulli(linear(inputs).detach().squeeze(1).sigmoid()).long()
    scaling = QuadraticScaling().fit(linear(inputs).detach(), target)
    torch.testing.assert_close(scaling.fold_into(linear)(inputs), scaling(linear(inputs)), rtol=1e-5, atol=1e-5)
