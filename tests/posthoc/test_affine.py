"""The affine solver reaches the optimum of its convex problem, by Newton's method and by L-BFGS alike."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrant.posthoc import StructuredMatrixScaling, StructuredVectorScaling, affine
from calibrant.posthoc.affine import Affine, Penalty, fit_affine
from tests.posthoc.data import overconfident


def objective(features: Tensor, target: Tensor, weight: Tensor | None, penalty: Penalty, at: Affine) -> Tensor:
    """Transcription of the formula, sample by sample and entry by entry."""
    classes = features.shape[1]
    matrix = at.matrix if at.matrix.dim() == 2 else torch.diag(at.matrix)
    weights = torch.ones(len(features), dtype=torch.float64) if weight is None else weight
    total = torch.zeros((), dtype=torch.float64)
    for row, label, each in zip(features, target, weights, strict=True):
        logits = row + matrix @ row + at.shift
        total = total + each * (torch.logsumexp(logits, 0) - logits[label])
    total = total / weights.sum() + penalty.shift * (at.shift**2).sum()
    for i in range(classes):
        for j in range(classes):
            total = total + (penalty.diagonal if i == j else penalty.off_diagonal) * matrix[i, j] ** 2
    return total


def start(classes: int, diagonal: bool) -> Affine:
    shape = (classes,) if diagonal else (classes, classes)
    return Affine(torch.zeros(shape, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64))


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
    limit = affine.NEWTON_PRODUCTS
    try:
        affine.NEWTON_PRODUCTS = 1e12 if newton else 0.0
        found = fit_affine(features, target, weight, penalty, start(classes, diagonal), tolerance=1e-12)
    finally:
        affine.NEWTON_PRODUCTS = limit
    variables = [part.clone().requires_grad_() for part in found]
    value = objective(features, target, weight, penalty, Affine(*variables))
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
    eye = torch.eye(classes, dtype=torch.float64)
    leaf = [torch.zeros_like(part).requires_grad_() for part in (fitted.matrix, fitted.shift)]

    def value(matrix: Tensor, shift: Tensor) -> Tensor:
        full = matrix if matrix.dim() == 2 else torch.diag(matrix)
        nll = torch.nn.functional.cross_entropy(features + features @ full.T + shift, target)
        prior = (classes - 1) * ((1 - eye) * full**2).sum() + (eye * full**2).sum() + (shift**2).sum()
        return nll + own * prior

    optimizer = torch.optim.LBFGS(leaf, max_iter=3000, tolerance_grad=1e-10, tolerance_change=1e-15, history_size=30,
                                  line_search_fn="strong_wolfe")  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = value(*leaf)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert float(value(fitted.matrix, fitted.shift)) == pytest.approx(value(*leaf).item(), abs=1e-6)
    expected = (
        features + features @ (fitted.matrix if kind.full else torch.diag(fitted.matrix)).T + fitted.shift
    ).softmax(1)
    torch.testing.assert_close(fitted.predict_proba(logits), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_solver_that_stops_a_step_early_has_reached_the_minimum(strength: float, weighted: bool) -> None:
    logits, target = overconfident(1500, 30, 2.0, seed=2)
    logits = logits + torch.linspace(0, 2, 30, dtype=torch.float64)
    weight = torch.linspace(0.5, 1.5, 1500, dtype=torch.float64) if weighted else None
    penalty = Penalty(strength, 0.1 * strength, 0.1 * strength)
    found = fit_affine(logits, target, weight, penalty, start(30, False), tolerance=5e-7)
    matrix, shift = (part.clone().requires_grad_() for part in found)
    losses = torch.nn.functional.cross_entropy(logits + logits @ matrix.T + shift, target, reduction="none")
    nll = losses.mean() if weight is None else losses @ weight / weight.sum()
    squares = matrix**2
    own = 0.1 * (squares.diagonal().sum() + (shift**2).sum())
    slopes = torch.autograd.grad(nll + strength * (squares.sum() - squares.diagonal().sum() + own), (matrix, shift))
    # Strongly convex: an entry with the penalty a x^2 is within slope^2 / 4a of its best.
    factor = torch.full((30, 30), strength, dtype=torch.float64).fill_diagonal_(0.1 * strength)
    bound = (slopes[0] ** 2 / (4 * factor)).sum() + (slopes[1] ** 2).sum() / (0.4 * strength)
    assert float(bound) < (1e-6 if strength >= 1 else 1e-4)


def test_large_problems_in_single_precision_reach_the_same_value(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = overconfident(2000, 40, 2.0, seed=1)
    penalty = Penalty(0.5, 0.02, 0.02)
    double = fit_affine(logits, target, None, penalty, start(40, False))
    monkeypatch.setattr(affine, "SINGLE_PRECISION", 0)
    monkeypatch.setattr(affine, "NEWTON_PRODUCTS", 0)
    single = fit_affine(logits, target, None, penalty, start(40, False), tolerance=1e-7)
    values = []
    for found in (double, single):
        nll = torch.nn.functional.cross_entropy(found.apply(logits), target)
        squares = found.matrix**2
        values.append(
            float(nll + 0.5 * squares.sum() - 0.48 * squares.diagonal().sum() + 0.02 * (found.shift**2).sum())
        )
    assert values[1] == pytest.approx(values[0], abs=1e-6)
    assert np.isfinite(values).all()


def test_many_samples_leave_temperature_scaling_behind_and_few_stay_with_it() -> None:
    logits, target = overconfident(5000, 4, 2.0, seed=3)
    swapped = logits[:, [1, 0, 2, 3]]
    shifts = [float(StructuredMatrixScaling().fit(swapped[:n], target[:n]).matrix.abs().max()) for n in (20, 200, 5000)]
    assert shifts[0] < shifts[1] < shifts[2]
    assert shifts[0] < 0.2
    accuracy = (
        (StructuredMatrixScaling().fit(swapped, target).predict_proba(swapped).argmax(1) == target).double().mean()
    )
    assert accuracy > (logits.argmax(1) == target).double().mean() - 0.02


def test_a_layer_with_structured_scaling_behind_it_gives_calibrated_logits() -> None:
    torch.manual_seed(0)
    for outputs, classes in ((4, 4), (1, 2)):
        layer = torch.nn.Linear(6, outputs)
        inputs = 3 * torch.randn(400, 6)
        target = torch.randint(classes, (400,))
        for kind in (StructuredMatrixScaling, StructuredVectorScaling):
            scaling = kind().fit(layer(inputs).detach(), target)
            folded = scaling.fold_into(layer)
            assert isinstance(folded[0], torch.nn.Linear)
            torch.testing.assert_close(folded(inputs), scaling(layer(inputs)), rtol=1e-5, atol=1e-5)
