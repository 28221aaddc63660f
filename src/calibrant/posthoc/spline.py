"""Spline calibration: the derivative of the cumulative gap between hits and confidence."""

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.numerics import exclusive_cumsum, tie_bounds
from calibrant.posthoc.lookup import SortedHits, linear_lookup
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, with_complement

# Points of the table: they resolve the distribution of the scores to a tenth of a percent.
TABLE = 1024


class SplineCalibration(ScoreCalibrator):
    r"""Add the slope of the cumulative gap between hits and scores to each score.

    With scores sorted, let :math:`h(t)` be the sum of hits minus scores over the lowest fraction t of the samples,
    divided by N: its largest deviation from 0 is the KS error. Its slope :math:`h'(t)` is the rate of hits at that
    quantile minus the predicted one. A natural cubic spline is fitted to h by least squares, and a score z at quantile
    t becomes :math:`z + h'(t)`, clipped to [0, 1].

    The map is kept as a table at up to 1,024 quantiles of the held-out scores, with straight lines between them.
    Tied scores share their mean rate of hits, so the order of the data does not matter.

    Args:
        knots: Number of knots of the spline, at equal steps of t.
        view: ``"top-label"``, as in the paper; or ``"class-wise"``, one-vs-rest, which helps little with many classes:
            a few knots at equal steps of t all lie among the scores near 0, which are the most, and the few high ones
            are hardly corrected. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu, Hartley, "Calibration of Neural Networks using Splines",
        ICLR 2021.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import SplineCalibration
        >>> logits = torch.tensor([3.0, -3.0]).repeat(500)
        >>> target = torch.tensor([1, 0, 1, 0, 1, 0, 0, 1]).repeat(125)  # right in three of four
        >>> SplineCalibration(strict=True).fit(logits, target).predict_proba(torch.tensor([3.0]))
        tensor([[0.2500, 0.7500]])
    """

    state = ("positions", "values")
    positions: Tensor
    values: Tensor

    def __init__(self, knots: int = 6, view: View = "top-label", *, strict: bool = False) -> None:
        super().__init__(view, strict=strict)
        checks.check_count("knots", knots)
        if knots < 2:
            raise ValueError(f"knots must be at least 2, got {knots}")
        self.knots = int(knots)

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Fit the spline and tabulate the map."""
        sample = SortedHits(scores.probability, hits, weight)
        ascending = sample.ascending.double()
        rows, samples = ascending.shape
        first, last = tie_bounds(sample.ascending)
        start, end = first.double(), last.double() + 1
        if sample.mass is not None:
            start, end = sample.mass.gather(1, first), sample.mass.gather(1, last + 1)
        # Samples whose weight is lost in the sum of all have no rate of their own: they are not corrected.
        mass = end - start
        right = sample.cumulated.gather(1, last + 1) - sample.cumulated.gather(1, first)
        rate = torch.where(mass > 0, (right / mass).clamp(0, 1), ascending)
        if sample.weight is None or sample.mass is None:
            total = float(samples)
            gap = exclusive_cumsum(rate - ascending) / samples
            fraction = torch.arange(samples + 1, dtype=torch.float64, device=gap.device) / samples
            design, _ = natural_cubic_basis(fraction, self.knots)
            coefficients = torch.linalg.pinv(design) @ gap.T
        else:
            total = float(sample.mass[0, -1])
            gap = exclusive_cumsum((rate - ascending) * sample.weight) / total
            design, _ = natural_cubic_basis((sample.mass / total).flatten(), self.knots)
            root = torch.nn.functional.pad(sample.weight, (1, 0), value=float(total) / samples).sqrt().unsqueeze(2)
            weighted = torch.linalg.pinv(design.view(rows, samples + 1, -1) * root)
            coefficients = (weighted @ (gap.unsqueeze(2) * root)).squeeze(2).T
        few = torch.linspace(0, samples - 1, min(samples, TABLE), dtype=torch.float64).round().long().to(gap.device)
        quantile = (start + end)[:, few] / (2 * total)
        _, slopes = natural_cubic_basis(quantile.flatten(), self.knots)
        slope = (slopes.view(rows, len(few), -1) @ coefficients.T.unsqueeze(2)).squeeze(2)
        # Beyond the held-out scores the correction is that of the outermost one.
        ends = slope.new_zeros(rows, 1), slope.new_ones(rows, 1)
        position = torch.cat((ends[0], ascending[:, few], ends[1]), dim=1)
        slope = torch.cat((slope[:, :1], slope, slope[:, -1:]), dim=1)
        return position, (position + slope).clamp(0, 1)

    def map_scores(self, scores: Scores) -> Mapped:
        """Look up the table."""
        return with_complement(linear_lookup(self.positions, self.values, scores.probability))


def natural_cubic_basis(position: Tensor, knots: int) -> tuple[Tensor, Tensor]:
    """Values and first derivatives of a basis of natural cubic splines on [0, 1], each ``(N, knots)``.

    Natural splines are linear beyond the outermost knots, here 0 and 1. The basis is that of truncated powers without
    the cubic and quadratic growth beyond the last knot.

    Args:
        position: ``(N,)``, in [0, 1].
        knots: Number of knots, at equal steps from 0 to 1; at least 2.
    """
    at = torch.linspace(0, 1, knots, dtype=position.dtype, device=position.device)
    above = (position.unsqueeze(1) - at).clamp_min(0)
    beyond = above[:, -1:]
    # Each truncated cube minus that of the last knot grows quadratically; division makes their slopes equal.
    cubes = (above[:, :-1].pow(3) - beyond.pow(3)) / (1 - at[:-1])
    slopes = 3 * (above[:, :-1].square() - beyond.square()) / (1 - at[:-1])
    one, line = torch.ones_like(beyond), position.unsqueeze(1)
    values = torch.cat((one, line, cubes[:, :-1] - cubes[:, -1:]), dim=1)
    derivatives = torch.cat((0 * one, one, slopes[:, :-1] - slopes[:, -1:]), dim=1)
    return values, derivatives
