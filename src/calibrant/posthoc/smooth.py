"""Smooth scaling: a smoothing spline of the log-odds around temperature scaling, for binary models."""

import numpy as np

from calibrant.frames import Array
from calibrant.posthoc.affine import StructuredMatrixScaling
from calibrant.posthoc.cross_validation import HeldOut
from calibrant.posthoc.map import Map, OddsCurve
from calibrant.posthoc.solvers import logistic_regression, softplus

# Inverse variance of the prior of slope and shift: that of structured matrix scaling for two classes.
PRECISION = 4.0
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


class SmoothScaling(StructuredMatrixScaling):
    r"""Map the temperature-scaled log-odds of a binary model by a curve that is as smooth as the data ask for.

    With T the best temperature, :math:`q = \sigma(l / T)` the scaled probability of class 1,
    :math:`\epsilon = 1/(n+1)` and the log-odds z of :math:`(1 - \epsilon) q + \epsilon / 2`,

    .. math:: \hat p = \sigma(b z + c + g(v)), \qquad
        \min_{b, c, g}\ n\, \mathrm{NLL} + 2 \left((b - 1)^2 + c^2\right) + \frac{\lambda}{2} \int g''(v)^2\, dv

    where v is z, moved and scaled to -1 to 1 between the outer knots, and :math:`g(v) = \sum_k d_k |v - k|^3` a natural
    cubic spline with up to 12 knots at quantiles of the scores. The penalties are Gaussian priors: of slope and shift
    that of :class:`StructuredMatrixScaling`; and of the curve, whose strength :math:`\lambda` the data choose. Six
    strengths, 16 times apart, are averaged by their marginal likelihood (Laplace's approximation): nothing is tuned,
    and no sample is set aside. The curve may also fall, which that of beta calibration cannot. The result is mixed with
    the uniform distribution, as in :class:`Calibrator`.

    For more than two classes this is :class:`StructuredMatrixScaling`.

    References:
        Wahba, "Bayesian 'Confidence Intervals' for the Cross-Validated Smoothing Spline", JRSS B, 1983.
        Wood, "Fast stable restricted maximum likelihood and marginal likelihood estimation of semiparametric
        generalized linear models", JRSS B, 2011.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import SmoothScaling
        >>> draw = np.random.default_rng(0)
        >>> logits = 4 * draw.normal(size=20000)
        >>> truth = 1 / (1 + np.exp(-2 * np.tanh(logits)))  # never surer than 88 %
        >>> scaling = SmoothScaling().fit(logits, draw.random(20000) < truth)
        >>> scaling.predict_proba(np.array([-3.0, 0.0, 3.0, 9.0]))[:, 1].round(1)
        array([0.1, 0.5, 0.9, 0.9])
    """

    def fit_map(self, data: HeldOut) -> Map:
        """Solve for the temperature, then for line and curve of every strength."""
        if data.logits.shape[1] > 2:
            return super().fit_map(data)
        scaled, features = self.features(data._replace(logits=data.logits.astype(np.float64)))
        counts = np.ones(len(features)) if data.weight is None else data.weight
        line, knots, values = fit_curve(features[:, 1] - features[:, 0], 1.0 * data.target, counts)
        return self.mixed(OddsCurve(line, *spline_pieces(knots, values), scaled), data)


def fit_curve(odds: Array, hits: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Slope and shift of the line, and the curve's knots and values there.

    Line and curve are fitted with every strength of the prior, and averaged by their marginal likelihood.
    """
    knots = knots_of(odds)
    z, y, counts = joined(odds, hits, counts)
    line, bends = np.stack((z, np.ones_like(z))), roughness_basis(knots, z).T
    # Strengths as factors of the curve: then all coefficients have the same prior.
    factors = np.ones((len(SCALES), len(line) + len(bends)))
    factors[:, 2:] = np.array(SCALES)[:, None]
    features = np.concatenate((line, bends)) * factors[:, :, None]
    centre = np.eye(features.shape[1])[0]
    found = logistic_regression(
        features, np.broadcast_to(y, (len(SCALES), len(y))), centre, PRECISION / float(counts.sum()), weight=counts
    )
    evidence = log_evidence(features, y, counts, found, centre)
    shares = np.exp(evidence - evidence.max())
    mean = shares / shares.sum() @ (found * factors)
    if not len(bends):
        return mean[:2], np.arange(2.0), np.zeros(2)
    return mean[:2], knots, roughness_basis(knots, knots) @ mean[2:]


def spline_pieces(knots: Array, values: Array) -> tuple[Array, Array, Array]:
    """The natural cubic spline through values at knots: knots, polynomials between them, value and slopes at ends."""
    from scipy.interpolate import CubicSpline  # a fit needs it, and a saved calibrator does not

    spline = CubicSpline(knots, values, bc_type="natural")
    width = np.diff(knots)
    powers = np.stack([spline.c[3 - k] * width**k for k in (1, 2, 3)], axis=1)
    return knots, powers, np.array([values[0], *spline(knots[[0, -1]], 1)])


def log_evidence(features: Array, hits: Array, counts: Array, found: Array, centre: Array) -> Array:
    """Laplace's approximation of the log marginal likelihood of some regressions, up to a constant.

    Args:
        features: ``(rows, d, N)``.
        hits: ``(N,)`` shares of hits.
        counts: ``(N,)`` weights.
        found: ``(rows, d)`` most likely coefficients.
        centre: ``(d,)`` mean of their prior.
    """
    odds = (found[:, None] @ features)[:, 0]
    likelihood = ((hits * odds - softplus(odds)) * counts).sum(1)
    p = 1 / (1 + np.exp(-odds))
    curvature = (features * (p * (1 - p) * counts)[:, None]) @ features.transpose(0, 2, 1)
    curvature = curvature + PRECISION * np.eye(features.shape[1])
    prior = PRECISION / 2 * np.square(found - centre).sum(1)
    return np.asarray(likelihood - prior - np.linalg.slogdet(curvature)[1] / 2)


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
