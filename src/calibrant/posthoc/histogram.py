"""Histogram binning: the rate of hits in each bin."""

from typing import Literal

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.posthoc.lookup import SortedHits, bin_middles, step_lookup
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, with_complement

Mode = Literal["equal-mass", "equal-width"]


class HistogramBinning(ScoreCalibrator):
    """Replace a probability by the rate of hits among the held-out samples in its bin.

    Bins are right-closed. A bin without held-out samples gives its middle. Ties are never split, so there can be
    fewer bins of equal mass than requested. Rates of 0 and 1 occur; mixing with the uniform distribution (see
    :class:`Calibrator`) keeps the log loss finite.

    Args:
        bins: Number of bins.
        mode: ``"equal-mass"``, bins with the same number of samples; or ``"equal-width"``.
        view: ``"top-label"``; or ``"class-wise"``, one-vs-rest, where samples that share their bins in all classes
            become identical, and accuracy can fall. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Zadrozny, Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian
        classifiers", ICML 2001.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import HistogramBinning
        >>> logits = torch.tensor([3.0, 3.0, 3.0, 3.0, -3.0, -3.0])
        >>> binning = HistogramBinning(2, "equal-width", strict=True).fit(logits, torch.tensor([1, 1, 1, 0, 0, 1]))
        >>> binning.predict_proba(torch.tensor([3.0, -1.0]))[:, 1]  # four of six predictions are right
        tensor([0.6667, 0.3333])
    """

    state = ("edges", "values")
    edges: Tensor
    values: Tensor

    def __init__(
        self, bins: int = 15, mode: Mode = "equal-mass", view: View = "top-label", *, strict: bool = False
    ) -> None:
        super().__init__(view, strict=strict)
        checks.check_count("bins", bins)
        checks.check_choice("mode", mode, ("equal-mass", "equal-width"))
        self.bins = int(bins)
        self.mode = mode

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Count hits in bins."""
        sample = SortedHits(scores.probability, hits, weight)
        if self.mode == "equal-mass":
            edges = sample.equal_mass_edges(self.bins)
        else:
            edges = torch.arange(1, self.bins, dtype=scores.log_p.dtype, device=scores.log_p.device) / self.bins
            edges = edges.expand(len(hits), -1)
        counts, right = sample.count(edges)
        rates = (right / torch.where(counts > 0, counts, 1.0)).clamp(0, 1)  # sums of weights are rounded
        return edges, torch.where(counts > 0, rates, bin_middles(edges))

    def map_scores(self, scores: Scores) -> Mapped:
        """Look up the bins."""
        return with_complement(step_lookup(self.edges, self.values, scores.probability))
