"""Structured matrix and vector scaling: an affine map around temperature scaling, held by a fixed prior."""

import torch
from torch import Tensor, nn

from calibrant.posthoc.affine import SINGLE_PRECISION, Affine, Penalty, fit_affine
from calibrant.posthoc.base import Calibrator, relative
from calibrant.posthoc.folding import check_layer, layer_like
from calibrant.posthoc.temperature import bounded_temperature


class StructuredMatrixScaling(Calibrator):
    r"""Correct the temperature-scaled log-probabilities by a full matrix and a shift, with a prior around none (SMS).

    With T the best temperature, :math:`q = \mathrm{softmax}(l / T)`, :math:`\epsilon = 1/(n+1)` and
    :math:`x = \ln((1 - \epsilon) q + \epsilon / C)`,

    .. math:: \hat p = \mathrm{softmax}(x + D x + b), \qquad
        \min_{D, b}\ \mathrm{NLL} + \frac{C}{n} \sum_k b_k^2 + \frac{C}{n} \sum_k D_{kk}^2
        + \frac{C (C - 1)}{n} \sum_{k \ne j} D_{kj}^2

    The penalties are those of a Gaussian prior around temperature scaling, with variances :math:`1/2C` and
    :math:`1/2C(C-1)`. There is nothing to tune: with few samples the fit stays near temperature scaling, with many it
    corrects classes that are mistaken for one another. The problem is convex, and solved to within :math:`10^{-6}`. It
    can change the predicted class.

    References:
        Berta, Holzmüller, Jordan, Bach, "Structured Matrix Scaling for Multi-Class Calibration", 2025.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import StructuredMatrixScaling
        >>> draw = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=draw)
        >>> target = (2 * logits).softmax(1).multinomial(1, generator=draw).squeeze(1)
        >>> two = target == 2  # half of these become class 1
        >>> target[two] = torch.randint(1, 3, (two.sum(),), generator=draw)
        >>> scaling = StructuredMatrixScaling().fit(logits, target)
        >>> scaling.predict_proba(torch.tensor([[0.0, 0.0, 3.0]])).round(decimals=1)
        tensor([[0.0000, 0.5000, 0.5000]])
    """

    full = True
    # Factor of the penalties, and distance to the minimum at which the search ends.
    strength, tolerance = 1.0, 5e-7
    least_rows = 30
    temperature: Tensor
    matrix: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("temperature", "matrix", "shift"):
            self.register_buffer(name, None)

    @property
    def temperature_(self) -> float:
        """The fitted temperature."""
        self.require_fitted()
        return float(self.temperature)

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Solve for the temperature, then for the correction."""
        self.fit_temperature(logits, target, weight)
        classes = logits.shape[1]
        count = len(logits) if weight is None else float(weight.sum())
        own = self.strength * classes / count
        matrix = logits.new_zeros(classes, *([classes] if self.full else []), dtype=torch.float64)
        start = Affine(matrix, logits.new_zeros(classes, dtype=torch.float64))
        penalty = Penalty(own * (classes - 1), own, own)
        given = logits if logits.numel() > SINGLE_PRECISION else logits.double()
        found = fit_affine(self._features(given), target, weight, penalty, start, tolerance=self.tolerance)
        self.matrix, self.shift = found.matrix.to(logits.dtype), found.shift.to(logits.dtype)

    def fit_temperature(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Set the best temperature, or a bounded one."""
        temperature, problem = bounded_temperature(logits, target, weight)
        if problem:
            self.notice(f"{problem}; T = {temperature:.3g} is used")
        self.temperature = logits.new_tensor(temperature)

    def check_order(self, rows: Tensor, target: Tensor) -> None:
        """Add nothing: the search for the temperature has a notice of the same."""

    def _features(self, logits: Tensor) -> Tensor:
        scaled = relative(logits) / self.temperature.to(logits.dtype)
        return (scaled.softmax(1) * (1 - self.smoothing_) + self.smoothing_ / logits.shape[1]).log()

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Correct the scaled log-probabilities."""
        return Affine(self.matrix, self.shift).apply(self._features(logits))

    # The features are mixed with the uniform distribution, not the result.
    def mixed(self, rows: Tensor) -> Tensor:
        """Return calibrated probabilities of validated ``(N, C)`` logits."""
        return self.probabilities(rows)

    def mixed_logits(self, calibrated: Tensor) -> Tensor:
        """Return the calibrated logits as they are."""
        return calibrated

    def fold_into(self, linear: nn.Linear) -> nn.Sequential:
        """Return a module in place of the last layer that returns calibrated logits.

        The temperature is folded into the weights. The correction takes log-probabilities, and their normalisation
        depends on the sample: no linear layer can express it, and it follows the layer as a module of its own.

        Args:
            linear: The classifier's last layer, with one output per class (or one, if binary). It is not changed.
        """
        check_layer(linear, self)
        scale = 1 / self.temperature.double()
        bias = None if linear.bias is None else linear.bias.double() * scale
        rest = type(self)()
        rest.load_state_dict(self.state_dict())
        rest.temperature = torch.ones_like(rest.temperature)
        return nn.Sequential(layer_like(linear, linear.weight.double() * scale, bias), rest)


class StructuredVectorScaling(StructuredMatrixScaling):
    r"""Structured matrix scaling with a diagonal matrix: a scale and a shift for every class (SVS).

    .. math:: \hat p = \mathrm{softmax}(x + d \odot x + b), \qquad
        \min_{d, b}\ \mathrm{NLL} + \frac{C}{n} \sum_k b_k^2 + \frac{C}{n} \sum_k d_k^2

    with the features x of :class:`StructuredMatrixScaling`. It needs less data than the full matrix, and is
    the better of the two with a hundred classes or more.

    References:
        Berta, Holzmüller, Jordan, Bach, "Structured Matrix Scaling for Multi-Class Calibration", 2025.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import StructuredVectorScaling
        >>> draw = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=draw)
        >>> target = (2 * logits + torch.tensor([0.0, 0.0, 1.0])).softmax(1).multinomial(1, generator=draw).squeeze(1)
        >>> scaling = StructuredVectorScaling().fit(logits, target)
        >>> scaling.shift.argmax()  # the model thinks too little of class 2
        tensor(2)
    """

    full = False
