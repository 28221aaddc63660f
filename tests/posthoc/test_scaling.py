"""Vector, matrix and Dirichlet scaling reach the optimum of their convex problems."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.posthoc import DirichletCalibration, FitWarning, MatrixScaling, TemperatureScaling, VectorScaling
from tests.posthoc.data import nll, overconfident


def biased(samples: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits that are over-confident, and shifted and scaled class by class."""
    logits, target = overconfident(samples, classes, 1.0, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    scale = 1 + 2 * torch.rand(classes, generator=generator, dtype=torch.float64)
    return logits * scale + torch.randn(classes, generator=generator, dtype=torch.float64), target


def minimum(loss_of: "torch.nn.Module | object", start: Tensor) -> tuple[float, Tensor]:
    """Lowest value of a differentiable function by SciPy's BFGS family on autograd's gradients."""

    def value_and_gradient(position: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(position).requires_grad_()
        loss = loss_of(leaf)  # type: ignore[operator]
        return loss.item(), torch.autograd.grad(loss, leaf)[0].numpy()

    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    found = minimize(value_and_gradient, start.numpy(), jac=True, method="L-BFGS-B", options=options)
    return float(found.fun), torch.from_numpy(found.x)


@pytest.mark.parametrize(("samples", "classes"), [(500, 2), (2000, 10), (3000, 100)])
def test_vector_scaling_reaches_the_lowest_likelihood(samples: int, classes: int) -> None:
    logits, target = biased(samples, classes, seed=classes)

    def loss(position: Tensor) -> Tensor:
        scale, shift = position.chunk(2)
        return torch.nn.functional.cross_entropy(logits * scale + shift, target)

    start = torch.cat((torch.ones(classes), torch.zeros(classes))).double()
    lowest = minimum(loss, start)[0]
    for dtype in (torch.float64, torch.float32):
        scaling = VectorScaling(strict=True).fit(logits.to(dtype), target)
        assert nll(scaling.double().predict_proba(logits), target) <= lowest + 1e-6
    assert lowest < nll(TemperatureScaling().fit(logits, target).predict_proba(logits), target) - 1e-3


@pytest.mark.parametrize("kind", [MatrixScaling, DirichletCalibration])
def test_affine_maps_reach_the_lowest_penalised_likelihood(kind: type[MatrixScaling]) -> None:
    logits, target = biased(1500, 4, seed=3)
    features = logits if kind is MatrixScaling else logits.log_softmax(1)
    off = 1 - torch.eye(4, dtype=torch.float64)

    def penalised(matrix: Tensor, shift: Tensor) -> Tensor:
        fit = torch.nn.functional.cross_entropy(features @ matrix.T + shift, target)
        return fit + 0.3 * ((off * matrix) ** 2).sum() / 12 + 0.05 * (shift**2).mean()

    lowest, _ = minimum(lambda x: penalised(x[:16].view(4, 4), x[16:]), torch.zeros(20, dtype=torch.float64))
    fitted = kind(0.3, 0.05).fit(logits, target)
    assert float(penalised(fitted.matrix, fitted.shift)) == pytest.approx(lowest, abs=1e-6)


@pytest.mark.parametrize("kind", [MatrixScaling, DirichletCalibration])
def test_strong_penalties_leave_a_diagonal_and_weak_ones_do_not(kind: type[MatrixScaling]) -> None:
    logits, target = biased(500, 3, seed=5)
    off = ~torch.eye(3, dtype=torch.bool)
    strong, weak = kind(1e6, 1e6).fit(logits, target), kind(1e-6, 1e-6).fit(logits, target)
    assert strong.matrix[off].abs().max() < 1e-4
    assert strong.shift.abs().max() < 1e-4
    assert weak.matrix[off].abs().max() > 1e-3
    assert weak.shift.abs().max() > 1e-2


def test_cross_validation_mends_what_a_diagonal_cannot() -> None:
    logits, target = overconfident(1500, 4, 2.0, seed=7)
    mixing = torch.eye(4, dtype=torch.float64) + 0.5 * torch.roll(torch.eye(4, dtype=torch.float64), 1, dims=1)
    mixed = logits @ mixing.T
    matrix = MatrixScaling().fit(mixed[:1000], target[:1000])
    vector = VectorScaling().fit(mixed[:1000], target[:1000])
    assert matrix.chosen_penalties_ is not None
    assert matrix.chosen_penalties_[0] < 1
    after = nll(matrix.predict_proba(mixed[1000:]), target[1000:])
    assert after < nll(vector.predict_proba(mixed[1000:]), target[1000:]) - 0.02


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling, DirichletCalibration])
def test_separable_data_stays_finite(kind: type[VectorScaling] | type[MatrixScaling]) -> None:
    logits = torch.eye(3)[torch.arange(60) % 3] * 5
    calibrator = (kind() if kind is VectorScaling else kind(0.01, 0.01)).fit(logits, torch.arange(60) % 3)  # type: ignore[call-arg, arg-type]
    assert all(buffer.abs().max() < 100 for buffer in calibrator.buffers())
    assert calibrator.predict_proba(logits).isfinite().all()


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling, DirichletCalibration])
def test_logits_that_overflow_are_refused(kind: type[VectorScaling] | type[MatrixScaling]) -> None:
    logits, target = overconfident(50, 3, 1.0, seed=8)
    with pytest.raises(ValueError, match="overflows: scale the logits to a sensible range"):
        (kind() if kind is VectorScaling else kind(1.0, 1.0)).fit(logits * 1e300, target)  # type: ignore[call-arg, arg-type]


def test_chosen_penalties_travel_with_the_state() -> None:
    logits, target = overconfident(90, 3, 2.0, seed=8)
    fitted, other = MatrixScaling().fit(logits, target), MatrixScaling()
    other.load_state_dict(fitted.state_dict())
    assert fitted.chosen_penalties_ is not None
    assert other.chosen_penalties_ == fitted.chosen_penalties_


def test_a_class_that_never_occurs_stays_finite() -> None:
    logits, target = overconfident(500, 4, 2.0, seed=9)
    target = target.clamp_max(2)
    scaling = VectorScaling().fit(logits, target)
    assert scaling.scale.abs().max() < 100
    assert scaling.predict_proba(logits)[:, 3].max() < 0.01


@pytest.mark.parametrize(("options", "message"), [
    ({"off_diagonal_penalty": -1.0}, "off_diagonal_penalty must be at least 0"),
    ({"bias_penalty": "auto"}, 'bias_penalty must be a number or "cv", got \'auto\''),
    ({"folds": 1}, "folds must be at least 2, got 1"),
])  # fmt: skip
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MatrixScaling(**options)  # type: ignore[arg-type]


def test_too_few_samples_to_cross_validate_get_a_fixed_prior() -> None:
    with pytest.warns(FitWarning, match="2 samples are too few to cross-validate: penalties are those of a fixed"):
        fitted = MatrixScaling().fit(torch.eye(2), torch.tensor([0, 0]))
    assert fitted.chosen_penalties_ == (2.0, 2.0)
