"""Logistic regressions of a few features, for all rows at once."""

import torch
from torch import Tensor

# Scores above which the first steps are in single precision, which takes half as long.
ROUGH = 2**16
# Multiples of the centre to start from, compared on one of so many samples.
SCALES = tuple(2.0**-k for k in range(-1, 7))
STRIDE = 8


def logistic_regression(
    features: Tensor, target: Tensor, centre: Tensor, pull: float = 1e-8, *, weight: Tensor | None = None
) -> Tensor:
    r"""Minimise mean NLL plus :math:`\frac{pull}{2}|\theta - centre|^2` by Newton's method with step halving.

    Args:
        features: ``(rows, d, N)``, float64; a constant for the intercept is one of them.
        target: Probability of a hit, ``(rows, N)``, float64.
        centre: ``(d,)``: point that the coefficients start from and are pulled towards.
        pull: Strength of the pull; it bounds the coefficients if data is separable or a feature is constant.
        weight: ``(N,)`` weights of the samples, or None.

    Returns:
        Coefficients, ``(rows, d)``.
    """
    rows, count, samples = features.shape
    share = features.new_full((samples,), 1 / samples) if weight is None else weight / weight.sum()
    start = centre.expand(rows, count).clone()
    # What the labels contribute: the NLL is the mean softplus of the log-odds minus the product with these.
    moments = (features @ (target * share).unsqueeze(2)).squeeze(2)
    if rows * samples > ROUGH:
        single = _Problem(features.float(), moments.float(), centre.float(), share.float(), pull)
        start = _newton(single, single.scaled_start(), tolerance=1e-5).double()
    return _newton(_Problem(features, moments, centre, share, pull), start, tolerance=1e-12)


def _newton(problem: "_Problem", coefficients: Tensor, tolerance: float) -> Tensor:
    """Steps of all rows, each until the gain that is left is below half the tolerance; changes the coefficients."""
    active = torch.arange(len(coefficients), device=coefficients.device)
    # Several times as fast as the norm.
    largest = torch.maximum(problem.features.amax(2), -problem.features.amin(2))
    odds = problem.log_odds(coefficients)
    value = problem.value(coefficients, odds)
    for _ in range(100):
        gradient, curvature = problem.derivatives(coefficients[active], odds)
        direction = -torch.linalg.solve_ex(curvature, gradient)[0]
        left = -(direction * gradient).sum(1)  # twice the gain that is left
        direction = direction.to(coefficients.dtype)
        # A step that changes no log-odds by more than s leaves about s squared of the gain: it is the last, unsearched.
        change = (direction.abs() * largest[active]).sum(1)
        last = (left >= tolerance) & (left * change.square() < tolerance / 10) & (change < 0.1)
        coefficients[active[last]] += direction[last]
        going = (left >= tolerance) & ~last
        if not going.all():
            active, direction, odds, value = active[going], direction[going], odds[going], value[going]
            problem = problem.of(going)
        if len(active) == 0:
            break
        better, moved, odds, value = _search(problem, coefficients[active], direction, odds, value)
        coefficients[active] = moved
        if not better.all():  # only rounding is left
            active, odds, value = active[better], odds[better], value[better]
            problem = problem.of(better)
    return coefficients


class _Problem:
    """Values and derivatives of the regressions of some rows."""

    def __init__(self, features: Tensor, moments: Tensor, centre: Tensor, share: Tensor, pull: float) -> None:
        self.features, self.moments = features, moments
        self.centre, self.share, self.pull = centre, share, pull

    def of(self, rows: Tensor) -> "_Problem":
        """The problem of some of the rows."""
        return _Problem(self.features[rows], self.moments[rows], self.centre, self.share, self.pull)

    def scaled_start(self) -> Tensor:
        """The centre times the best of some powers of 2 for each row, on a part of the samples.

        Far from the optimum, as with logits many times too large, the first Newton steps would be halved many times.
        """
        odds = self.log_odds(self.centre.expand(len(self.moments), -1))[:, ::STRIDE]
        share = self.share[::STRIDE] / self.share[::STRIDE].sum()
        at_centre = self.moments @ self.centre
        values = [torch.nn.functional.softplus(odds * scale) @ share - at_centre * scale for scale in SCALES]
        best = torch.stack(values).nan_to_num(torch.inf).argmin(0)
        return self.centre.new_tensor(SCALES)[best].unsqueeze(1) * self.centre

    def log_odds(self, coefficients: Tensor) -> Tensor:
        return (coefficients.unsqueeze(1) @ self.features).squeeze(1)

    def value(self, coefficients: Tensor, odds: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        nll = torch.nn.functional.softplus(odds) @ self.share - (self.moments[rows] * coefficients).sum(1)
        return nll + self.pull / 2 * (coefficients - self.centre).square().sum(1)

    def derivatives(self, coefficients: Tensor, odds: Tensor) -> tuple[Tensor, Tensor]:
        probability = odds.sigmoid()
        weighted = probability * self.share
        gradient = (self.features @ weighted.unsqueeze(2)).squeeze(2) - self.moments
        gradient = gradient.double() + self.pull * (coefficients - self.centre)
        spread = weighted.mul_(probability.neg_().add_(1))
        curvature = ((self.features * spread.unsqueeze(1)) @ self.features.mT).double()
        curvature.diagonal(dim1=1, dim2=2).add_(self.pull)
        return gradient, curvature


def _search(
    problem: _Problem, position: Tensor, direction: Tensor, odds: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halve the steps of the rows that become worse; return which improved, and where all are then."""
    moved = position + direction
    there = problem.log_odds(moved)
    reached = problem.value(moved, there)
    worse = (~(reached <= value)).nonzero().squeeze(1)
    for _ in range(40):
        if len(worse) == 0:
            break
        # Log-odds are linear in the coefficients: half the way there is half the way here.
        moved[worse], there[worse] = (moved[worse] + position[worse]) / 2, (there[worse] + odds[worse]) / 2
        reached[worse] = problem.value(moved[worse], there[worse], worse)
        worse = worse[~(reached[worse] <= value[worse])]
    moved[worse], there[worse], reached[worse] = position[worse], odds[worse], value[worse]
    return reached < value, moved, there, reached
