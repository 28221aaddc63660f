"""Bayesian binning into quantiles: an average of histograms, weighted by their evidence."""

import math

import torch
from torch import Tensor

from calibrant.posthoc.lookup import SortedHits, bin_middles, step_lookup
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, with_complement

# Weight of the prior of a binning, in samples (N' in the paper), and factor around the cube root of N to search.
PRIOR_SAMPLES = 2.0
SPREAD = 10
# Binnings with less than this share of the best one's posterior hardly change the result.
LEAST_SHARE = 1e-3
# Resolution of values, and their smallest distance to 0 and 1: the precision of float32 near 1.
GRAIN = 2.0**-23


class BayesianBinning(ScoreCalibrator):
    r"""Average histograms of equal mass over the number of bins, weighted by their posterior (BBQ).

    Every number of bins B from :math:`\sqrt[3]{N}/10` to :math:`10\sqrt[3]{N}` is a model. In each of its bins the
    rate of hits has a Beta prior worth :math:`2/B` samples around the middle of the bin; the marginal likelihood
    of all bins (the BDeu score) is the weight of the model, and its prediction is the posterior mean

    .. math:: \frac{m_b + \alpha_b}{n_b + 2/B}, \qquad \alpha_b = \frac{2}{B}\, p_b

    with :math:`m_b` hits among :math:`n_b` samples and the middle :math:`p_b`. So no value is ever 0 or 1, or
    nearer to them than :math:`2^{-23}`, the precision of the table. Models with less than a thousandth of the best
    one's posterior are left out. The average is stored as one table, in which a prediction is one look-up.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import BayesianBinning
        >>> logits = torch.tensor([3.0, -3.0]).repeat(500)
        >>> target = torch.tensor([1, 0, 1, 0, 1, 0, 0, 1]).repeat(125)  # right in three of four
        >>> BayesianBinning(strict=True).fit(logits, target).predict_proba(torch.tensor([3.0]))
        tensor([[0.2500, 0.7500]])
    """

    state = ("edges", "values")
    edges: Tensor
    values: Tensor

    def __init__(self, view: View = "class-wise", *, strict: bool = False) -> None:
        super().__init__(view, strict=strict)

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Score every binning, and average those that count."""
        sample = SortedHits(scores.probability, hits, weight)
        samples = hits.shape[1]
        root = (samples if weight is None else float(weight.sum())) ** (1 / 3)
        sizes = range(max(1, math.floor(root / SPREAD)), min(samples, math.ceil(root * SPREAD)) + 1)
        evidence = torch.stack([_log_evidence(sample, bins) for bins in sizes], dim=1)
        share = (evidence - evidence.amax(1, keepdim=True)).exp()
        share = torch.where(share < LEAST_SHARE, 0.0, share)
        return _average(sample, list(sizes), share / share.sum(1, keepdim=True))

    def map_scores(self, scores: Scores) -> Mapped:
        """Look up the table."""
        return with_complement(step_lookup(self.edges, self.values, scores.probability))


def _prior(edges: Tensor) -> Tensor:
    """Prior samples of a hit in each bin; those of a miss are the rest of ``PRIOR_SAMPLES`` over bins."""
    return bin_middles(edges).clamp(1e-12, 1 - 1e-12) * (PRIOR_SAMPLES / (edges.shape[1] + 1))


def _log_evidence(sample: SortedHits, bins: int) -> Tensor:
    """BDeu score of the binning for each row."""
    edges = sample.equal_mass_edges(bins)
    counts, hits = sample.count(edges)
    whole = PRIOR_SAMPLES / bins
    right = _prior(edges)
    wrong = whole - right
    score = torch.lgamma(hits + right) - torch.lgamma(right) + torch.lgamma(counts - hits + wrong) - torch.lgamma(wrong)
    return (score + math.lgamma(whole) - torch.lgamma(counts + whole)).sum(1)


def _average(sample: SortedHits, sizes: list[int], share: Tensor) -> tuple[Tensor, Tensor]:
    """One table of the weighted models: all their edges together, and between them the weighted mean."""
    rows = len(share)
    first = share.new_zeros(rows, 1)
    edges, jumps = [sample.ascending.new_zeros(rows, 0)], [share.new_zeros(rows, 0)]
    for bins, weight in zip(sizes, share.split(1, dim=1), strict=True):
        if not bool(weight.any()):
            continue
        cuts = sample.equal_mass_edges(bins)
        counts, hits = sample.count(cuts)
        rates = (hits + _prior(cuts)) / (counts + PRIOR_SAMPLES / bins)
        first += weight * rates[:, :1]
        # A row does not use the edges of other rows' models: they move to the end, beyond every score.
        edges.append(torch.where(weight > 0, cuts, torch.inf))
        jumps.append(weight * rates.diff(dim=1))
    # The mean follows from its first value and its jump at each edge.
    all_edges, order = torch.cat(edges, dim=1).sort(1)
    rises = torch.cat(jumps, dim=1).gather(1, order).cumsum(1)
    values = torch.cat((first, first + rises), dim=1)
    values = ((values / GRAIN).round() * GRAIN).clamp(GRAIN, 1 - GRAIN)
    repeated = all_edges.diff(dim=1, prepend=all_edges.new_full((rows, 1), -1.0)) == 0
    all_edges, values = _without(repeated | all_edges.isinf(), all_edges, values)
    return _without(values.diff(dim=1) == 0, all_edges, values)


def _without(dropped: Tensor, edges: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The table without some edges and the bins to their left; rows with fewer edges end in infinite ones."""
    width = int((~dropped).sum(1).max()) if dropped.shape[1] else 0
    order = dropped.byte().sort(stable=True, dim=1).indices[:, :width]
    last = values[:, -1:]
    edges = edges.masked_fill(dropped, torch.inf).gather(1, order)
    values = torch.where(dropped, last, values[:, :-1]).gather(1, order)
    return edges, torch.cat((values, last), dim=1)
