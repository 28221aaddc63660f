"""Matrix scaling and Dirichlet calibration: an affine map of logits or log-probabilities, kept near diagonal."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.numerics import log_softmax
from calibrant.posthoc.base import Calibrator, check_whole
from calibrant.posthoc.likelihood import PULL, Vector, chunks, minimise, nll_and_residual
from calibrant.posthoc.temperature import temperature_or_one

Penalty = float | Literal["cv"]
# Strongest first: the first fits are nearly diagonal and quick, and the next one starts from each.
GRID = (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)


class Affine(NamedTuple):
    """Fitted parameters: ``(C, C)`` matrix and ``(C,)`` shift."""

    matrix: Tensor
    shift: Tensor


class MatrixScaling(Calibrator):
    r"""Map the logits by a full matrix and a shift, kept near diagonal by the ODIR penalty.

    .. math:: \hat p = \mathrm{softmax}(W l + b), \qquad
        \min_{W, b}\ \mathrm{NLL} + \frac{\lambda}{C(C-1)} \sum_{k \ne j} W_{kj}^2 + \frac{\mu}{C} \sum_k b_k^2

    The matrix can correct classes that are mistaken for one another. With :math:`C^2 + C` parameters it needs the
    penalty, and plenty of held-out data: with fewer than a few hundred samples per class prefer vector scaling,
    which is the limit of a large penalty. The problem is convex, and solved by L-BFGS in float64; the
    diagonal, which ODIR leaves free, is bounded on separable data by the same pull as in vector scaling.

    Args:
        off_diagonal_penalty: :math:`\lambda`, or ``"cv"``: the value among 1000, 100, 10, 1, 0.1, 0.01 with the lowest
            NLL in cross-validation, tried in that order, by fits of at most 50 steps that each start from the previous
            one. Once two values have not lowered the NLL, the rest is skipped.
        bias_penalty: :math:`\mu`, or ``"cv"``. If both are, :math:`\lambda` is chosen first, with :math:`\mu = 1`.
        folds: Number of folds of the cross-validation.
        seed: Seed of the assignment of samples to folds.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017 (matrix scaling);
        Kull, Perello-Nieto, Kängsepp, Silva Filho, Song, Flach, "Beyond temperature scaling: Obtaining
        well-calibrated multiclass probabilities with Dirichlet calibration", NeurIPS 2019 (ODIR).

    Example:
        >>> import torch
        >>> from calibrant.posthoc import MatrixScaling
        >>> logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> swapped = logits.argmax(1) ^ 1  # the model mistakes class 0 for class 1; 2 becomes 3
        >>> scaling = MatrixScaling(0.001, 0.001).fit(logits, swapped.clamp_max(2))
        >>> (scaling(logits).argmax(1) == swapped.clamp_max(2)).float().mean() > 0.95
        tensor(True)
    """

    found = ("chosen_penalties_",)
    matrix: Tensor
    shift: Tensor

    def __init__(
        self,
        off_diagonal_penalty: Penalty = "cv",
        bias_penalty: Penalty = "cv",
        *,
        folds: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("off_diagonal_penalty", off_diagonal_penalty), ("bias_penalty", bias_penalty)):
            if value != "cv":
                if isinstance(value, str):
                    raise ValueError(f'{name} must be a number or "cv", got {value!r}')
                inputs.check_range(name, value, low=0.0)
        inputs.check_count("folds", folds)
        if folds < 2:
            raise ValueError(f"folds must be at least 2, got {folds}")
        self.off_diagonal_penalty = off_diagonal_penalty
        self.bias_penalty = bias_penalty
        self.folds = int(folds)
        check_whole("seed", seed)
        self.seed = int(seed)
        self.chosen_penalties_: tuple[float, float] | None = None
        self.register_buffer("matrix", None)
        self.register_buffer("shift", None)

    def fit_rows(self, logits: Tensor, target: Tensor) -> None:
        """Choose the penalties if requested, and minimise the penalised NLL."""
        features = self.features(logits)
        start = torch.eye(features.shape[1], dtype=torch.float64) / temperature_or_one(logits, target)
        begin = Affine(start.to(logits.device), features.new_zeros(features.shape[1], dtype=torch.float64))
        off_diagonal, bias = self.off_diagonal_penalty, self.bias_penalty
        if off_diagonal == "cv":
            grid = [(strength, 1.0 if bias == "cv" else bias) for strength in GRID]
            off_diagonal = self._cross_validated(features, target, begin, grid)[0]
        if bias == "cv":
            bias = self._cross_validated(features, target, begin, [(off_diagonal, strength) for strength in GRID])[1]
        self.chosen_penalties_ = (float(off_diagonal), float(bias))
        affine = _fit_affine(features, target, begin, *self.chosen_penalties_)
        self.matrix, self.shift = affine.matrix.to(logits.dtype), affine.shift.to(logits.dtype)

    def _cross_validated(
        self, features: Tensor, target: Tensor, begin: Affine, grid: list[tuple[float, float]]
    ) -> tuple[float, float]:
        """Return the penalties with the lowest held-out NLL; stop once it has risen twice."""
        if len(features) < self.folds:
            raise ValueError(
                f"cross-validation with {self.folds} folds needs as many samples, got {len(features)}: "
                "pass penalties as numbers, or more data"
            )
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(self.seed)).to(features.device)
        fold_of = torch.empty_like(order)
        fold_of[order] = torch.arange(len(order), device=order.device) % self.folds
        fits = [begin] * self.folds
        totals: list[float] = []
        for penalties in grid:
            total = 0.0
            for fold in range(self.folds):
                kept, out = fold_of != fold, fold_of == fold
                fits[fold] = _fit_affine(features[kept], target[kept], fits[fold], *penalties, roughly=True)
                for part, labels in chunks(features[out], target[out]):
                    calibrated = torch.addmm(fits[fold].shift, part, fits[fold].matrix.T)
                    total += nll_and_residual(calibrated, labels)[0]
            totals.append(total)
            if len(totals) - 1 - totals.index(min(totals)) == 2:
                break
        return grid[totals.index(min(totals))]

    def features(self, logits: Tensor) -> Tensor:
        """Return the input of the matrix."""
        return logits

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Apply the matrix and the shift."""
        return torch.addmm(self.shift.to(logits.dtype), self.features(logits), self.matrix.to(logits.dtype).T)


class DirichletCalibration(MatrixScaling):
    r"""Map the log-probabilities by a full matrix and a shift, kept near diagonal by the ODIR penalty.

    .. math:: \hat p = \mathrm{softmax}(W \ln \mathrm{softmax}(l) + b)

    This is the correct map if the probabilities of each class are Dirichlet distributed; for two classes it is beta
    calibration. Unlike matrix scaling it does not depend on a common shift of all logits of a sample. Options and
    solver are those of :class:`MatrixScaling`.

    Args:
        off_diagonal_penalty: :math:`\lambda`, or ``"cv"``.
        bias_penalty: :math:`\mu`, or ``"cv"``.
        folds: Number of folds of the cross-validation.
        seed: Seed of the assignment of samples to folds.

    References:
        Kull, Perello-Nieto, Kängsepp, Silva Filho, Song, Flach, "Beyond temperature scaling: Obtaining
        well-calibrated multiclass probabilities with Dirichlet calibration", NeurIPS 2019.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import DirichletCalibration
        >>> logits = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]).repeat(4, 1)
        >>> target = torch.tensor([0, 1, 2] * 3 + [1, 2, 0])  # sure of all, right in three of four
        >>> DirichletCalibration(0.01, 0.01).fit(logits, target).predict_proba(logits[:1])[0, 0] < 0.8
        tensor(True)
    """

    def features(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities."""
        return log_softmax(logits)


def _fit_affine(
    features: Tensor, target: Tensor, begin: Affine, off_diagonal: float, bias: float, *, roughly: bool = False
) -> Affine:
    """Minimise the penalised NLL from ``begin``; a rough solution is enough to compare penalties."""
    samples, classes = features.shape
    square = classes * classes
    on_off = off_diagonal / (classes * (classes - 1))
    weight = torch.full((classes, classes), on_off, dtype=torch.float64, device=features.device)
    weight.fill_diagonal_(PULL / (2 * classes))
    centre = torch.eye(classes, dtype=torch.float64, device=features.device)

    def objective(position: Vector) -> tuple[float, Vector]:
        parameters = torch.from_numpy(position).to(features.device)
        matrix, shift = parameters[:square].view(classes, classes), parameters[square:]
        value, slope, slope_shift = 0.0, torch.zeros_like(matrix), torch.zeros_like(shift)
        for part, labels in chunks(features, target):
            nll, residual = nll_and_residual(torch.addmm(shift, part, matrix.T), labels)
            value += nll
            slope.addmm_(residual.T, part)
            slope_shift += residual.sum(0)
        away = matrix - centre
        penalty = (weight * away.square()).sum() + (bias + PULL) / classes * shift.square().sum()
        slope = slope / samples + 2 * weight * away
        slope_shift = slope_shift / samples + 2 * (bias + PULL) / classes * shift
        return value / samples + float(penalty), torch.cat((slope.flatten(), slope_shift)).cpu().numpy()

    start = torch.cat((begin.matrix.flatten(), begin.shift)).cpu().numpy()
    scale = _step_sizes(features, target, begin, weight, bias / classes)
    tolerance, steps = (1e-5, 50) if roughly else (1e-7, 1000)
    best = torch.from_numpy(minimise(objective, start, scale, gradient_tolerance=tolerance, steps=steps))
    best = best.to(features.device)
    return Affine(best[:square].view(classes, classes), best[square:])


def _step_sizes(features: Tensor, target: Tensor, at: Affine, weight: Tensor, shift_weight: float) -> Vector:
    """The inverse root of the objective's curvature in each variable at ``at``."""
    curvature, shift_curvature = torch.zeros_like(at.matrix), torch.zeros_like(at.shift)
    for part, _ in chunks(features, target):
        probability = torch.addmm(at.shift, part, at.matrix.T).softmax(1)
        spread = probability * (1 - probability)
        curvature.addmm_(spread.T, part.square())
        shift_curvature += spread.sum(0)
    curvature = curvature / len(features) + 2 * weight
    shift_curvature = shift_curvature / len(features) + 2 * shift_weight
    both = torch.cat((curvature.flatten(), shift_curvature))
    return both.clamp_min(1e-6 * float(both.max())).clamp_min(1e-12).rsqrt().cpu().numpy()
