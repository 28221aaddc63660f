"""Matrix scaling and Dirichlet calibration: an affine map of logits or log-probabilities, kept near diagonal."""

from typing import Literal

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.numerics import log_softmax
from calibrant.posthoc.affine import Affine, Penalty, fit_affine
from calibrant.posthoc.base import HUGE, Calibrator
from calibrant.posthoc.folds import fold_numbers
from calibrant.posthoc.likelihood import PULL, nll_and_residual
from calibrant.posthoc.notices import counted
from calibrant.posthoc.temperature import temperature_or_one

Strength = float | Literal["cv"]
# Strongest first: the first fits are nearly diagonal and quick, and the next one starts from each.
GRID = (1e6, 1e5, 1e4, 1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)
# Products of a fit, samples times classes squared, beyond which there is no cross-validation.
CROSS_VALIDATED = 1e9


class MatrixScaling(Calibrator):
    r"""Map the logits by a full matrix and a shift, kept near diagonal by the ODIR penalty.

    .. math:: \hat p = \mathrm{softmax}(W l + b), \qquad
        \min_{W, b}\ \mathrm{NLL} + \frac{\lambda}{C(C-1)} \sum_{k \ne j} W_{kj}^2 + \frac{\mu}{C} \sum_k b_k^2

    The matrix can correct classes that are mistaken for one another. With :math:`C^2 + C` parameters it needs the
    penalty, and plenty of held-out data: with fewer than a few hundred samples per class prefer vector scaling,
    which is the limit of a large penalty. The problem is convex, and solved by Newton's method or L-BFGS; the
    diagonal, which ODIR leaves free, is bounded on separable data by the same pull as in vector scaling. The map
    depends on the constant that is added to all logits of a row, which a softmax does not see: use it on the logits of
    the model it was fitted for.

    Args:
        off_diagonal_penalty: :math:`\lambda`, or ``"cv"``: the power of ten from a million to 0.01 with the lowest NLL
            in cross-validation, tried in that order. Once two values have not lowered the NLL, the rest is skipped.
            With more than a billion samples times classes squared, and with fewer samples than folds, it is
            that of the prior of :class:`StructuredMatrixScaling`, :math:`(C (C - 1))^2 / n`.
        bias_penalty: :math:`\mu`, or ``"cv"``. If both are, :math:`\lambda` is chosen first, with :math:`\mu = 1`.
        folds: Number of folds of the cross-validation; the assignment does not depend on the order of the samples.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

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
        off_diagonal_penalty: Strength = "cv",
        bias_penalty: Strength = "cv",
        *,
        folds: int = 3,
        strict: bool = False,
    ) -> None:
        super().__init__(strict=strict)
        for name, value in (("off_diagonal_penalty", off_diagonal_penalty), ("bias_penalty", bias_penalty)):
            if value != "cv":
                if isinstance(value, str):
                    raise ValueError(f'{name} must be a number or "cv", got {value!r}')
                checks.check_range(name, value, low=0.0)
        checks.check_count("folds", folds)
        if folds < 2:
            raise ValueError(f"folds must be at least 2, got {folds}")
        self.off_diagonal_penalty = off_diagonal_penalty
        self.bias_penalty = bias_penalty
        self.folds = int(folds)
        self.chosen_penalties_: tuple[float, float] | None = None
        self.register_buffer("matrix", None)
        self.register_buffer("shift", None)

    def rows_needed(self, classes: int) -> int:
        """Ten rows for each class."""
        return 10 * classes

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Choose the penalties if requested, and minimise the penalised NLL."""
        features = self.features(logits)
        samples, classes = features.shape
        scale = 1 / temperature_or_one(logits, target, weight) - 1
        start = Affine(
            scale * torch.eye(classes, dtype=torch.float64, device=logits.device),
            features.new_zeros(classes, dtype=torch.float64),
        )
        off_diagonal, bias = self.off_diagonal_penalty, self.bias_penalty
        if "cv" in (off_diagonal, bias) and (samples < self.folds or samples * classes**2 > CROSS_VALIDATED):
            # As strong as the prior of structured matrix scaling.
            count = samples if weight is None else float(weight.sum())
            prior = (classes * (classes - 1)) ** 2 / count, classes**2 / count
            off_diagonal, bias = (
                fixed if given == "cv" else given for given, fixed in zip((off_diagonal, bias), prior, strict=True)
            )
            if samples < self.folds:
                few = f"{counted(samples, 'sample')} {'is' if samples == 1 else 'are'} too few"
                self.notice(f"{few} to cross-validate: penalties are those of a fixed prior; use more data")
        if off_diagonal == "cv":
            grid = [(strength, 1.0 if bias == "cv" else bias) for strength in GRID]
            off_diagonal = self._cross_validated(features, target, weight, start, grid)[0]
        if bias == "cv":
            grid = [(off_diagonal, strength) for strength in GRID]
            bias = self._cross_validated(features, target, weight, start, grid)[1]
        self.chosen_penalties_ = (float(off_diagonal), float(bias))
        # In single precision, in which large problems are solved, no more can be reached.
        tolerance = 1e-6 if samples * classes**2 > CROSS_VALIDATED else 1e-8
        penalty = _penalty(classes, *self.chosen_penalties_)
        found = fit_affine(features, target, weight, penalty, start, tolerance=tolerance)
        whole = found.matrix + torch.eye(classes, dtype=torch.float64, device=logits.device)
        self.matrix, self.shift = whole.to(logits.dtype), found.shift.to(logits.dtype)

    def _cross_validated(
        self, features: Tensor, target: Tensor, weight: Tensor | None, start: Affine, grid: list[tuple[float, float]]
    ) -> tuple[float, float]:
        """Return the penalties with the lowest held-out NLL; stop once two in a row have not lowered it."""
        number = fold_numbers(features, target, self.folds)
        fits = [start] * self.folds
        totals: list[float] = []
        for penalties in grid:
            total = 0.0
            for fold in range(self.folds):
                kept, out = number != fold, number == fold
                of_kept, of_out = (None if weight is None else weight[part] for part in (kept, out))
                penalty = _penalty(features.shape[1], *penalties)
                fits[fold] = fit_affine(features[kept], target[kept], of_kept, penalty, fits[fold], tolerance=1e-5)
                total += nll_and_residual(fits[fold].apply(features[out].double()), target[out], of_out)[0]
            totals.append(total)
            if len(totals) - 1 - totals.index(min(totals)) == 2:
                break
        return grid[totals.index(min(totals))]

    def features(self, logits: Tensor) -> Tensor:
        """Return the input of the matrix."""
        return logits

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Apply the matrix and the shift."""
        features = self.features(logits).clamp(-HUGE, HUGE)
        return torch.addmm(self.shift.to(logits.dtype), features, self.matrix.to(logits.dtype).T)


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
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

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


def _penalty(classes: int, off_diagonal: float, bias: float) -> Penalty:
    """ODIR's means as factors of squares, with the weak pull that bounds the diagonal on separable data."""
    between = classes * (classes - 1)
    return Penalty(off_diagonal / between, PULL / (2 * classes), (bias + PULL) / classes)
