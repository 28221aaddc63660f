"""Smooth scaling: a smoothing spline of the log-odds around temperature scaling, for binary models."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from calibrant.posthoc.binary_curve import PRECISION, BinaryCurve
from calibrant.posthoc.logistic import logistic_regression

Array = npt.NDArray[np.float64]

KNOTS = 12
# With fewer different scores there is no curve.
FEWEST_KNOTS = 4
# Knots nearer to each other than this share of their range, or than this many log-odds, are one.
NEAREST, LEAST_GAP = 1e-3, 1e-4
# Half the range of log-odds, at least, that the roughness is measured on: scores in a narrow range say little about
# slopes, and the curve goes on with these slopes beyond.
LEAST_HALF = 0.1
# Factors of the curve that are tried, which has the prior of the line then: the strength is 4 over their square.
SCALES = tuple(4.0**k for k in range(-3, 3))
# Samples beyond which neighbours are joined, in as many cells: a curve with so few knots cannot tell them apart.
JOINED = 2**14


class SmoothScaling(BinaryCurve):
    r"""Map the temperature-scaled log-odds of a binary model by a curve that is as smooth as the data ask for.

    With the log-odds z of :class:`QuadraticScaling`,

    .. math:: \hat p = \sigma(b z + c + g(v)), \qquad
        \min_{b, c, g}\ n\, \mathrm{NLL} + 2 \left((b - 1)^2 + c^2\right) + \frac{\lambda}{2} \int g''(v)^2\, dv

    where v is z, moved and scaled to -1 to 1 between the outer knots (by a factor of 10 at most), and
    :math:`g(v) = \sum_k d_k |v - k|^3` a natural cubic spline: :math:`\sum d_k = \sum d_k k = 0`, and beyond the outer
    knots it is straight. Up to 12 knots k are at quantiles of the different scores. The penalties are Gaussian priors:
    of slope and shift that of :class:`StructuredMatrixScaling` for two classes, with variance 1/4 around temperature
    scaling; and of the curve, whose strength :math:`\lambda` the data choose. Six strengths, 16 times apart, are
    averaged by their marginal likelihood (Laplace's approximation): nothing is tuned, and no sample is set aside.
    Without evidence of a curve this is close to structured matrix scaling; with many samples it follows any smooth
    miscalibration.

    The problem is convex for each strength, and solved by Newton's method. Beyond 16,384 samples, neighbours are joined
    before it. The result is mixed with the uniform distribution, as in :class:`Calibrator`.

    The curve may also fall. Beta calibration never falls.

    For more than two classes this is :class:`StructuredMatrixScaling`.

    References:
        Wahba, "Bayesian 'Confidence Intervals' for the Cross-Validated Smoothing Spline", JRSS B, 1983.
        Wood, "Fast stable restricted maximum likelihood and marginal likelihood estimation of semiparametric
        generalized linear models", JRSS B, 2011.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import SmoothScaling
        >>> draw = torch.Generator().manual_seed(0)
        >>> logits = 4 * torch.randn(20000, generator=draw)
        >>> truth = (2 * logits.tanh()).sigmoid()  # never surer than 88 %
        >>> scaling = SmoothScaling().fit(logits, torch.bernoulli(truth, generator=draw).long())
        >>> scaling.predict_proba(torch.tensor([-3.0, 0.0, 3.0, 9.0]))[:, 1].round(decimals=1)
        tensor([0.1000, 0.5000, 0.9000, 0.9000])
    """

    knots: Tensor
    pieces: Tensor
    ends: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("knots", "pieces", "ends"):
            self.register_buffer(name, None)

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Solve for the temperature, then for line and curve of every strength."""
        self._keep(np.arange(2.0), np.zeros(2), logits)
        super().fit_rows(logits, target, weight)

    def fit_curve(self, odds: Tensor, hits: Tensor, weight: Tensor | None, dtype: torch.dtype) -> tuple[float, float]:
        """Fit line and curve with every strength of the prior, and average them by their marginal likelihood."""
        z, y = odds.cpu().numpy(), hits.cpu().numpy()
        counts = np.ones_like(z) if weight is None else weight.double().cpu().numpy()
        z, y, counts = z[counts > 0], y[counts > 0], counts[counts > 0]
        knots = knots_of(z)
        z, y, counts = joined(z, y, counts)
        line, bends = np.stack((z, np.ones_like(z))), roughness_basis(knots, z).T
        # Strengths as factors of the curve: then all coefficients have the same prior.
        factors = np.ones((len(SCALES), len(line) + len(bends)))
        factors[:, 2:] = np.array(SCALES)[:, None]
        features = torch.from_numpy(np.concatenate((line, bends)) * factors[:, :, None])
        hit, weights = torch.from_numpy(y), torch.from_numpy(counts)
        centre = torch.eye(features.shape[1], dtype=features.dtype)[0]
        pull = PRECISION / float(counts.sum())
        found = logistic_regression(features, hit.expand(len(SCALES), -1), centre, pull, weight=weights)
        shares = log_evidence(features, hit, weights, found, centre).softmax(0)
        mean = shares.numpy() @ (found.numpy() * factors)
        if len(bends):
            self._keep(knots, roughness_basis(knots, knots) @ mean[2:], odds.to(dtype))
        return float(mean[0]), float(mean[1])

    def _keep(self, knots: Array, values: Array, like: Tensor) -> None:
        """Keep the natural cubic spline through values at knots, as polynomials between them and slopes beyond."""
        from scipy.interpolate import CubicSpline  # a fit needs it, and a saved calibrator does not

        spline = CubicSpline(knots, values, bc_type="natural")
        width = np.diff(knots)
        powers = np.stack([spline.c[3 - k] * width**k for k in (1, 2, 3)], axis=1)
        slopes = spline(knots[[0, -1]], 1)
        self.knots, self.pieces = like.new_tensor(knots), like.new_tensor(powers)
        self.ends = like.new_tensor([values[0], *slopes])

    def curve(self, odds: Tensor) -> Tensor:
        """Evaluate the spline."""
        knots, pieces, ends = (part.to(odds.dtype) for part in (self.knots, self.pieces, self.ends))
        # How far each piece has been crossed, from 0 to 1: the rises of all pieces add up.
        t = ((odds.unsqueeze(-1) - knots[:-1]) / (knots[1:] - knots[:-1])).clamp(0, 1)
        rises = t * (pieces[:, 0] + t * (pieces[:, 1] + t * pieces[:, 2]))
        below, above = (odds - knots[0]).clamp_max(0), (odds - knots[-1]).clamp_min(0)
        return ends[0] + rises.sum(-1) + ends[1] * below + ends[2] * above


def log_evidence(features: Tensor, hits: Tensor, counts: Tensor, found: Tensor, centre: Tensor) -> Tensor:
    """Laplace's approximation of the log marginal likelihood of some regressions, up to a constant.

    Args:
        features: ``(rows, d, N)``.
        hits: ``(N,)`` shares of hits.
        counts: ``(N,)`` weights.
        found: ``(rows, d)`` most likely coefficients.
        centre: ``(d,)`` mean of their prior.
    """
    odds = torch.einsum("rd,rdn->rn", found, features)
    likelihood = ((hits * odds - nn.functional.softplus(odds)) * counts).sum(1)
    p = odds.sigmoid()
    curvature = (features * (p * (1 - p) * counts).unsqueeze(1)) @ features.mT
    curvature = curvature + PRECISION * torch.eye(features.shape[1], dtype=features.dtype)
    prior = PRECISION / 2 * (found - centre).square().sum(1)
    return likelihood - prior - torch.logdet(curvature) / 2


def joined(odds: Array, hits: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Log-odds, shares of hits and weights: of many samples, means over narrow cells of equal width.

    Args:
        odds: ``(N,)``.
        hits: ``(N,)`` zeros and ones.
        counts: ``(N,)`` positive weights.
    """
    if len(odds) <= JOINED:
        return odds, hits, counts
    width = max(float(np.ptp(odds)) / JOINED, 1e-300)
    cell = ((odds - odds.min()) / width).astype(np.int64)
    sums = np.stack([np.bincount(cell, part) for part in (counts, counts * odds, counts * hits)])
    total, z, y = sums[:, sums[0] > 0].astype(np.float64)
    return z / total, y / total, total


def knots_of(odds: Array) -> Array:
    """Quantiles of the different log-odds; near ones are joined."""
    values = np.unique(odds)
    places = np.quantile(values, (np.arange(min(KNOTS, len(values))) + 0.5) / min(KNOTS, len(values)))
    kept = [places[0]]
    for place in places[1:]:
        if place - kept[-1] > max(NEAREST * (places[-1] - places[0]), LEAST_GAP):
            kept.append(place)
    return np.array(kept)


def roughness_basis(knots: Array, odds: Array) -> Array:
    r"""Curves :math:`\sum_k d_k |v - k|^3`, ``(N, knots - 2)``, with :math:`\int g''^2 = u^T u` for coefficients u.

    There are none with fewer than 4 knots.
    """
    if len(knots) < FEWEST_KNOTS:
        return np.zeros((len(odds), 0))
    centre, half = (knots[0] + knots[-1]) / 2, max((knots[-1] - knots[0]) / 2, LEAST_HALF)
    k, v = (knots - centre) / half, (odds - centre) / half
    free = np.linalg.qr(np.stack((np.ones_like(k), k), axis=1), mode="complete")[0][:, 2:]
    values, vectors = np.linalg.eigh(12 * free.T @ np.abs(k[:, None] - k) ** 3 @ free)
    return np.asarray(np.abs(v[:, None] - k) ** 3 @ (free @ vectors / np.sqrt(values)))
