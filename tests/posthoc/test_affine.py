"""The affine solver reaches the optimum of its convex problem, by Newton's method and by L-BFGS alike."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from calibrant.posthoc import (
    DirichletCalibration,
    FitWarning,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
    solvers,
)
from calibrant.posthoc.fit import HeldOut
from calibrant.posthoc.map import Affine
from calibrant.posthoc.solvers import Correction, Penalty, fit_affine
from tests.posthoc.data import CALIBRATORS, nll, overconfident, part_of


def objective(
    features: Tensor, target: Tensor, weight: Tensor | None, penalty: Penalty, matrix: Tensor, shift: Tensor
) -> Tensor:
    """The mean loss of ``features + matrix @ features + shift``, and the penalties."""
    full = matrix if matrix.dim() == 2 else torch.diag(matrix)
    losses = torch.nn.functional.cross_entropy(features + features @ full.T + shift, target, reduction="none")
    loss = losses.mean() if weight is None else losses @ weight / weight.sum()
    diagonal = full.diagonal()
    off_diagonal = full - torch.diag(diagonal)
    squares = penalty.off_diagonal * (off_diagonal**2).sum() + penalty.diagonal * (diagonal**2).sum()
    return loss + squares + penalty.shift * (shift**2).sum()


def minimum(loss_of: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """Lowest value of a differentiable function by SciPy's BFGS family on autograd's gradients."""

    def value_and_gradient(position: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(position).requires_grad_()
        loss = loss_of(leaf)
        return loss.item(), torch.autograd.grad(loss, leaf)[0].numpy()

    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    return float(minimize(value_and_gradient, start.numpy(), jac=True, method="L-BFGS-B", options=options).fun)


def solved(
    features: Tensor, target: Tensor, weight: Tensor | None, penalty: Penalty, *, diagonal: bool, tolerance: float
) -> list[Tensor]:
    """The solver's matrix and shift."""
    classes = features.shape[1]
    start = Correction(np.zeros((classes,) if diagonal else (classes, classes)), np.zeros(classes))
    data = HeldOut(features.numpy(), target.numpy(), None if weight is None else weight.numpy())
    return [torch.from_numpy(part) for part in fit_affine(data, penalty, start, tolerance=tolerance)]


@settings(max_examples=25, deadline=None)
@given(
    classes=st.integers(2, 5), samples=st.integers(1, 40), diagonal=st.booleans(), weighted=st.booleans(),
    newton=st.booleans(), scale=st.sampled_from([0.1, 1.0, 10.0]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_the_gradient_vanishes_at_the_solution(
    classes: int, samples: int, diagonal: bool, weighted: bool, newton: bool, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = scale * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    target = torch.randint(classes, (samples,), generator=generator)
    weight = torch.rand(samples, generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    penalty = Penalty(0.3, 0.1, 0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "NEWTON_PRODUCTS", 1e12 if newton else 0.0)
        found = solved(features, target, weight, penalty, diagonal=diagonal, tolerance=1e-12)
    variables = [part.requires_grad_() for part in found]
    value = objective(features, target, weight, penalty, *variables)
    slopes = torch.autograd.grad(value, variables)
    # Strongly convex with modulus 0.1: the value is within |gradient|^2 / 0.2 of the minimum.
    assert sum(float((slope**2).sum()) for slope in slopes) / 0.2 < 1e-8


@pytest.mark.slow_after(6)
@pytest.mark.parametrize("kind", [StructuredMatrixScaling, StructuredVectorScaling])
@pytest.mark.parametrize(("samples", "classes"), [(300, 3), (1000, 12), (800, 60), (3000, 100)])
def test_structured_scaling_is_the_minimum_of_its_formula(
    kind: type[StructuredMatrixScaling], samples: int, classes: int
) -> None:
    logits, target = overconfident(samples, classes, 2.5, seed=classes)
    logits = logits + torch.linspace(0, 2, classes, dtype=torch.float64)
    fitted = kind().fit(logits, target)
    share = 1 / (samples + 1)
    features = ((1 - share) * (logits / fitted.temperature_).softmax(1) + share / classes).log()
    own = classes / samples
    of_fit = part_of(fitted, Affine)
    matrix = torch.from_numpy(of_fit.matrix - (np.eye(classes) if kind.full else 1))
    shift = torch.from_numpy(of_fit.shift)

    def value(variables: Tensor) -> Tensor:
        penalty = Penalty(own * (classes - 1), own, own)
        return objective(features, target, None, penalty, variables[:-classes].view(matrix.shape), variables[-classes:])

    found = torch.cat((matrix.flatten(), shift))
    assert value(found).item() <= minimum(value, torch.zeros_like(found)) + 1e-8
    expected = (features + features @ (matrix if kind.full else torch.diag(matrix)).T + shift).softmax(1)
    torch.testing.assert_close(fitted.predict_proba(logits), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_solver_that_stops_a_step_early_has_reached_the_minimum(strength: float, weighted: bool) -> None:
    logits, target = overconfident(1500, 30, 2.0, seed=2)
    logits = logits + torch.linspace(0, 2, 30, dtype=torch.float64)
    weight = torch.linspace(0.5, 1.5, 1500, dtype=torch.float64) if weighted else None
    penalty = Penalty(strength, 0.1 * strength, 0.1 * strength)
    found = solved(logits, target, weight, penalty, diagonal=False, tolerance=5e-7)
    matrix, shift = (part.requires_grad_() for part in found)
    slopes = torch.autograd.grad(objective(logits, target, weight, penalty, matrix, shift), (matrix, shift))
    # Strongly convex: an entry with the penalty a x^2 is within slope^2 / 4a of its best.
    factor = torch.full((30, 30), strength, dtype=torch.float64).fill_diagonal_(0.1 * strength)
    bound = (slopes[0] ** 2 / (4 * factor)).sum() + (slopes[1] ** 2).sum() / (0.4 * strength)
    assert float(bound) < (1e-6 if strength >= 1 else 1e-4)


@pytest.mark.parametrize(("samples", "classes", "temperature"), [(2000, 40, 2.0), (40_000, 7, 1.0)])
def test_large_problems_in_single_precision_reach_the_minimum(
    samples: int, classes: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, target = overconfident(samples, classes, temperature, seed=1)
    logits = (logits + torch.linspace(0, 1, classes, dtype=torch.float64)).log_softmax(1)
    own = classes / samples
    penalty, values = Penalty(own * (classes - 1), own, own), []
    for limit, tolerance in ((1e12, 1e-14), (0, StructuredMatrixScaling.tolerance)):
        monkeypatch.setattr(solvers, "SINGLE_PRECISION", limit)
        matrix, shift = solved(logits, target, None, penalty, diagonal=False, tolerance=tolerance)
        values.append(float(objective(logits, target, None, penalty, matrix, shift)))
    assert 0 <= values[1] - values[0] + 1e-14 < 1e-8


def biased(samples: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits that are over-confident, and shifted and scaled class by class."""
    logits, target = overconfident(samples, classes, 1.0, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    scale = 1 + 2 * torch.rand(classes, generator=generator, dtype=torch.float64)
    return logits * scale + torch.randn(classes, generator=generator, dtype=torch.float64), target


@pytest.mark.parametrize(("samples", "classes"), [(500, 2), (2000, 10), (3000, 100)])
def test_vector_scaling_reaches_the_lowest_likelihood(samples: int, classes: int) -> None:
    logits, target = biased(samples, classes, seed=classes)

    def loss(position: Tensor) -> Tensor:
        scale, shift = position.chunk(2)
        return torch.nn.functional.cross_entropy(logits * scale + shift, target)

    start = torch.cat((torch.ones(classes), torch.zeros(classes))).double()
    lowest = minimum(loss, start)
    for dtype in (torch.float64, torch.float32):
        scaling = VectorScaling(strict=True).fit(logits.to(dtype), target)
        assert nll(scaling.predict_proba(logits), target) <= lowest + 1e-6
    assert lowest < nll(TemperatureScaling().fit(logits, target).predict_proba(logits), target) - 1e-3


@pytest.mark.parametrize("kind", [MatrixScaling, DirichletCalibration])
def test_affine_maps_reach_the_lowest_penalised_likelihood(kind: type[MatrixScaling]) -> None:
    logits, target = biased(1500, 4, seed=3)
    features = logits if kind is MatrixScaling else logits.log_softmax(1)
    penalty, eye = Penalty(0.3 / 12, 0, 0.05 / 4), torch.eye(4, dtype=torch.float64)

    def penalised(matrix: Tensor, shift: Tensor) -> Tensor:
        return objective(features, target, None, penalty, matrix - eye, shift)

    lowest = minimum(lambda x: penalised(x[:16].view(4, 4), x[16:]), torch.zeros(20, dtype=torch.float64))
    found = part_of(kind(0.3, 0.05).fit(logits, target), Affine)
    assert float(penalised(torch.from_numpy(found.matrix), torch.from_numpy(found.shift))) <= lowest + 1e-8


def test_cross_validation_corrects_what_a_diagonal_cannot() -> None:
    logits, target = overconfident(1500, 4, 2.0, seed=7)
    mixing = torch.eye(4, dtype=torch.float64) + 0.5 * torch.roll(torch.eye(4, dtype=torch.float64), 1, dims=1)
    mixed = logits @ mixing.T
    matrix = MatrixScaling().fit(mixed[:1000], target[:1000])
    vector = VectorScaling().fit(mixed[:1000], target[:1000])
    assert matrix.chosen_penalties_ is not None
    assert matrix.chosen_penalties_[0] < 1
    after = nll(matrix.predict_proba(mixed[1000:]), target[1000:])
    assert after < nll(vector.predict_proba(mixed[1000:]), target[1000:]) - 0.02


@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
def test_separable_data_stay_finite_and_logits_that_overflow_are_refused(name: str) -> None:
    logits = torch.eye(3)[torch.arange(60) % 3] * 5
    calibrator = CALIBRATORS[name]().fit(logits, torch.arange(60) % 3)
    assert all(np.abs(array).max() < 100 for array in calibrator.map_.split()[1].values())
    assert calibrator.predict_proba(logits).isfinite().all()
    with pytest.raises(ValueError, match="overflows"):
        CALIBRATORS[name]().fit(logits.double() * 1e300, (torch.arange(60) + 1) % 3)


def test_a_class_that_never_occurs_stays_finite() -> None:
    logits, target = overconfident(500, 4, 2.0, seed=9)
    target = target.clamp_max(2)
    scaling = VectorScaling().fit(logits, target)
    assert np.abs(part_of(scaling, Affine).matrix).max() < 100
    assert scaling.predict_proba(logits)[:, 3].max() < 0.01


@pytest.mark.parametrize(("options", "message"), [
    ({"off_diagonal_penalty": -1.0}, "off_diagonal_penalty"),
    ({"bias_penalty": "auto"}, "bias_penalty .*cv"),
])  # fmt: skip
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MatrixScaling(**options)  # type: ignore[arg-type]


def test_too_few_samples_to_cross_validate_get_a_fixed_prior() -> None:
    with pytest.warns(FitWarning, match="few for this method"):
        fitted = MatrixScaling().fit(torch.eye(2), torch.tensor([0, 0]))
    assert fitted.chosen_penalties_ == (2.0, 2.0)
