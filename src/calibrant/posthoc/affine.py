"""Affine maps of logits or log-probabilities: vector, matrix and Dirichlet scaling, and structured scaling."""

from typing import Literal

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.inputs import counted
from calibrant.posthoc.cross_validation import HeldOut, fold_of
from calibrant.posthoc.fit import Calibrator
from calibrant.posthoc.map import Affine, Map, Mixed, evaluated
from calibrant.posthoc.solvers import SINGLE_PRECISION, Correction, Penalty, fit_affine, nll_and_residual
from calibrant.posthoc.temperature import Tempered, temperature_or_one

Strength = float | Literal["cv"]
# Strength of the pull of every scale towards 1 and every shift towards 0. It is too weak to affect a fit with a
# finite optimum; on separable data, which has none, it keeps the numbers finite.
PULL = 1e-8
# Strongest first: the first fits are nearly diagonal and quick, and the next one starts from each.
GRID = (1e6, 1e5, 1e4, 1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)
# Products of a fit, samples times classes squared, beyond which there is no cross-validation.
CROSS_VALIDATED = 1e9


class VectorScaling(Calibrator):
    r"""Scale and shift the logit of every class, by the minimiser of the NLL on held-out data.

    .. math:: \hat p = \mathrm{softmax}(w \odot l + b)

    With 2C parameters it can correct a bias towards some classes, which a temperature cannot. It can change the
    predicted class, and needs some dozens of held-out samples per class. The problem is convex; on separable data,
    where the likelihood has no maximum, a weak pull towards no correction bounds the solution. The map depends on the
    constant that is added to all logits of a row, which a softmax does not see: use it on the logits of the model it
    was fitted for.

    Args:
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import VectorScaling
        >>> logits = np.array([2.0, 2.0, 2.0, 2.0, -2.0, -2.0, -2.0, -2.0])  # binary: the logit of class 1
        >>> scaling = VectorScaling(strict=True).fit(logits, np.array([1, 1, 1, 0, 1, 0, 1, 0]))
        >>> scaling.predict_proba(np.array([2.0, -2.0]))[:, 1].round(4)
        array([0.75, 0.5 ])
    """

    def rows_needed(self, classes: int) -> int:
        """Five rows for each of the 2 C parameters."""
        return 10 * classes

    def fit_map(self, data: HeldOut) -> Map:
        """Minimise the NLL."""
        classes = data.logits.shape[1]
        start = Correction(np.full(classes, 1 / temperature_or_one(*data) - 1), np.zeros(classes))
        pull = PULL / (2 * classes)
        found = fit_affine(data, Penalty(0.0, pull, pull), start)
        return self.mixed(Affine(1 + found.matrix, found.shift), data)


class MatrixScaling(Calibrator):
    r"""Map the logits by a full matrix and a shift, kept near diagonal by the ODIR penalty.

    .. math:: \hat p = \mathrm{softmax}(W l + b), \qquad
        \min_{W, b}\ \mathrm{NLL} + \frac{\lambda}{C(C-1)} \sum_{k \ne j} W_{kj}^2 + \frac{\mu}{C} \sum_k b_k^2

    The matrix can correct classes that are mistaken for one another. With :math:`C^2 + C` parameters it needs the
    penalty, and plenty of held-out data: with fewer than a few hundred samples per class prefer vector scaling,
    which is the limit of a large penalty. The problem is convex. The map depends on the constant that is added to all
    logits of a row, which a softmax does not see: use it on the logits of the model it was fitted for.

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
        >>> import numpy as np
        >>> from calibrant.posthoc import MatrixScaling
        >>> logits = np.random.default_rng(0).normal(size=(200, 3))
        >>> swapped = np.array([1, 0, 2])[logits.argmax(1)]  # the model mistakes class 0 for class 1
        >>> scaling = MatrixScaling(0.001, 0.001).fit(logits, swapped)
        >>> bool((scaling(logits).argmax(1) == swapped).mean() > 0.95)
        True
    """

    found = ("smoothing_", "chosen_penalties_")
    on_log_probabilities = False

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
                inputs.check_range(name, value, low=0.0)
        inputs.check_count("folds", folds)
        if folds < 2:
            raise ValueError(f"folds must be at least 2, got {folds}")
        self.off_diagonal_penalty = off_diagonal_penalty
        self.bias_penalty = bias_penalty
        self.folds = int(folds)
        self.chosen_penalties_: tuple[float, float] | None = None

    def rows_needed(self, classes: int) -> int:
        """Ten rows for each class."""
        return 10 * classes

    def fit_map(self, data: HeldOut) -> Map:
        """Choose the penalties if requested, and minimise the penalised NLL."""
        samples, classes = data.logits.shape
        start = Correction((1 / temperature_or_one(*data) - 1) * np.eye(classes), np.zeros(classes))
        features = data
        if self.on_log_probabilities:
            features = data._replace(logits=evaluated(lambda xp, rows: xp.log_softmax(rows), data.logits))
        self.chosen_penalties_ = self._penalties(features, start)
        # In single precision, in which large problems are solved, no more can be reached.
        tolerance = 1e-6 if samples * classes**2 > CROSS_VALIDATED else 1e-8
        found = fit_affine(features, _penalty(classes, *self.chosen_penalties_), start, tolerance=tolerance)
        affine = Affine(found.matrix + np.eye(classes), found.shift, of_log_probabilities=self.on_log_probabilities)
        return self.mixed(affine, data)

    def _penalties(self, data: HeldOut, start: Correction) -> tuple[float, float]:
        off_diagonal, bias = self.off_diagonal_penalty, self.bias_penalty
        classes = data.logits.shape[1]
        few = data.count < self.folds
        if "cv" in (off_diagonal, bias) and (few or len(data.target) * classes**2 > CROSS_VALIDATED):
            # As strong as the prior of structured matrix scaling.
            prior = (classes * (classes - 1)) ** 2 / data.count, classes**2 / data.count
            off_diagonal, bias = (
                fixed if given == "cv" else given for given, fixed in zip((off_diagonal, bias), prior, strict=True)
            )
            if few:
                self.notice(
                    f"{counted(len(data.target), 'sample')} {'is' if len(data.target) == 1 else 'are'} too few to "
                    "cross-validate: penalties are those of a fixed prior; use more data"
                )
        if off_diagonal == "cv":
            grid = [(strength, 1.0 if bias == "cv" else bias) for strength in GRID]
            off_diagonal = self._cross_validated(data, start, grid)[0]
        if bias == "cv":
            bias = self._cross_validated(data, start, [(off_diagonal, strength) for strength in GRID])[1]
        return float(off_diagonal), float(bias)

    def _cross_validated(
        self, data: HeldOut, start: Correction, grid: list[tuple[float, float]]
    ) -> tuple[float, float]:
        """Return the penalties with the lowest held-out NLL; stop once two in a row have not lowered it."""
        number = fold_of(data, self.folds)
        parts = [(data.take(number != fold), data.take(number == fold)) for fold in range(self.folds)]
        fits = [start] * self.folds
        totals: list[float] = []
        for penalties in grid:
            total = 0.0
            for fold, (kept, out) in enumerate(parts):
                fits[fold] = fit_affine(kept, _penalty(data.logits.shape[1], *penalties), fits[fold], tolerance=1e-5)
                logits = fits[fold].apply(out.logits.astype(np.float64))
                total += nll_and_residual(logits, out.target, out.weight)[0]
            totals.append(total)
            if len(totals) - 1 - totals.index(min(totals)) == 2:
                break
        return grid[totals.index(min(totals))]


class DirichletCalibration(MatrixScaling):
    r"""Map the log-probabilities by a full matrix and a shift, kept near diagonal by the ODIR penalty.

    .. math:: \hat p = \mathrm{softmax}(W \ln \mathrm{softmax}(l) + b)

    This is the correct map if the probabilities of each class are Dirichlet distributed; for two classes it is beta
    calibration. Unlike matrix scaling it does not depend on a common shift of all logits of a sample. Arguments and
    solver are those of :class:`MatrixScaling`.

    References:
        Kull, Perello-Nieto, Kängsepp, Silva Filho, Song, Flach, "Beyond temperature scaling: Obtaining
        well-calibrated multiclass probabilities with Dirichlet calibration", NeurIPS 2019.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import DirichletCalibration
        >>> logits = np.tile(4 * np.eye(3), (4, 1))
        >>> target = np.array([0, 1, 2] * 3 + [1, 2, 0])  # sure of all, right in three of four
        >>> bool(DirichletCalibration(0.01, 0.01).fit(logits, target).predict_proba(logits[:1])[0, 0] < 0.8)
        True
    """

    on_log_probabilities = True


def _penalty(classes: int, off_diagonal: float, bias: float) -> Penalty:
    """ODIR's means as factors of squares, with the weak pull that bounds the diagonal on separable data."""
    between = classes * (classes - 1)
    return Penalty(off_diagonal / between, PULL / (2 * classes), (bias + PULL) / classes)


class StructuredMatrixScaling(Tempered):
    r"""Correct the temperature-scaled log-probabilities by a full matrix and a shift, with a prior around none (SMS).

    With T the best temperature, :math:`q = \mathrm{softmax}(l / T)`, :math:`\epsilon = 1/(n+1)` and
    :math:`x = \ln((1 - \epsilon) q + \epsilon / C)`,

    .. math:: \hat p = \mathrm{softmax}(x + D x + b), \qquad
        \min_{D, b}\ \mathrm{NLL} + \frac{C}{n} \sum_k b_k^2 + \frac{C}{n} \sum_k D_{kk}^2
        + \frac{C (C - 1)}{n} \sum_{k \ne j} D_{kj}^2

    The penalties are those of a Gaussian prior around temperature scaling, with variances :math:`1/2C` and
    :math:`1/2C(C-1)`. There is nothing to tune: with few samples the fit stays near temperature scaling, with many it
    corrects classes that are mistaken for one another. The problem is convex, and solved to within :math:`10^{-8}`. It
    can change the predicted class.

    References:
        Berta, Holzmüller, Jordan, Bach, "Structured Matrix Scaling for Multi-Class Calibration", 2025.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import StructuredMatrixScaling
        >>> draw = np.random.default_rng(0)
        >>> logits = draw.normal(size=(2000, 3))
        >>> target = (2 * logits + draw.gumbel(size=(2000, 3))).argmax(1)  # of a softmax of twice the logits
        >>> two = target == 2  # half of these become class 1
        >>> target[two] = draw.integers(1, 3, two.sum())
        >>> scaling = StructuredMatrixScaling().fit(logits, target)
        >>> scaling.predict_proba(np.array([[0.0, 0.0, 3.0]])).round(1)
        array([[0. , 0.4, 0.6]])
    """

    least_rows = 30
    full = True
    # Factor of the penalties, and distance to the minimum at which the search ends.
    strength, tolerance = 1.0, 2e-9

    def __init__(self) -> None:
        super().__init__()

    def features(self, data: HeldOut) -> tuple[Map, Array]:
        """Map of the temperature-scaled probabilities, mixed with the uniform distribution; and their logarithms."""
        self.smoothing_ = 1 / (max(1.0, data.count) + 1)
        scaled = Mixed(self.smoothing_, self.fit_temperature(data))
        small = data.logits.size <= SINGLE_PRECISION
        logits = data.logits.astype(np.float64, copy=False) if small else data.logits
        return scaled, evaluated(scaled.logits, logits)

    def fit_map(self, data: HeldOut) -> Map:
        """Solve for the temperature, then for the correction."""
        scaled, features = self.features(data)
        classes = data.logits.shape[1]
        own = self.strength * classes / data.count
        start = Correction(np.zeros((classes, classes) if self.full else classes), np.zeros(classes))
        found = fit_affine(
            data._replace(logits=features), Penalty(own * (classes - 1), own, own), start, tolerance=self.tolerance
        )
        whole = found.matrix + (np.eye(classes) if self.full else 1.0)
        return Affine(whole, found.shift, scaled)


class StructuredVectorScaling(StructuredMatrixScaling):
    r"""Structured matrix scaling with a diagonal matrix: a scale and a shift for every class (SVS).

    .. math:: \hat p = \mathrm{softmax}(x + d \odot x + b), \qquad
        \min_{d, b}\ \mathrm{NLL} + \frac{C}{n} \sum_k b_k^2 + \frac{C}{n} \sum_k d_k^2

    with the features x of :class:`StructuredMatrixScaling`. It needs less data than the full matrix, and is
    the better of the two with a hundred classes or more.

    References:
        Berta, Holzmüller, Jordan, Bach, "Structured Matrix Scaling for Multi-Class Calibration", 2025.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import StructuredVectorScaling
        >>> draw = np.random.default_rng(0)
        >>> logits = draw.normal(size=(2000, 3))
        >>> target = (2 * logits + [0.0, 0.0, 1.0] + draw.gumbel(size=(2000, 3))).argmax(1)
        >>> scaling = StructuredVectorScaling().fit(logits, target)
        >>> int(scaling.map_.shift.argmax())  # the model thinks too little of class 2
        2
    """

    full, tolerance = False, 1e-8
