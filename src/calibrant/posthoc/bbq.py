"""Bayesian binning into quantiles: an average of histograms, weighted by how well they explain the data."""

import math

import torch
from torch import Tensor

from calibrant.posthoc.lookup import SortedHits, bin_middles, step_lookup
from calibrant.posthoc.scores import ScoreCalibrator, Scores, View

# Weight of the prior of a binning, in samples (N' in the paper), and how far around the cube root of N to look.
PRIOR_SAMPLES = 2.0
SPREAD = 10
# Binnings with less than this share of the best one's posterior change nothing that can be seen.
LEAST_SHARE = 1e-3


class BayesianBinning(ScoreCalibrator):
    r"""Average histograms of equal mass over the number of bins, weighted by their posterior (BBQ).

    Every number of bins B from :math:`\sqrt[3]{N}/10` to :math:`10\sqrt[3]{N}` is a model. In each of its bins the
    rate of hits has a Beta prior worth :math:`2/B` samples around the middle of the bin; the marginal likelihood
    of all bins (the BDeu score) weighs the model, and its prediction is the posterior mean

    .. math:: \frac{m_b + \alpha_b}{n_b + 2/B}, \qquad \alpha_b = \frac{2}{B}\, p_b

    with :math:`m_b` hits among :math:`n_b` samples and the middle :math:`p_b`. So no value is ever exactly 0 or 1.
    Models with less than a thousandth of the best one's posterior are left out. The average is kept as one
    table, in which a prediction is one look-up.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import BayesianBinning
        >>> logits = torch.tensor([3.0, -3.0]).repeat(500)
        >>> target = torch.tensor([1, 0, 1, 0, 1, 0, 0, 1]).repeat(125)  # right in three of four
        >>> BayesianBinning().fit(logits, target).predict_proba(torch.tensor([3.0]))
        tensor([[0.2500, 0.7500]])
    """

    state = ("edges", "values")
    edges: Tensor
    values: Tensor

    def __init__(self, view: View = "class-wise") -> None:
        super().__init__(view)

    def fit_scores(self, scores: Scores, hits: Tensor) -> tuple[Tensor, ...]:
        """Score every binning, and average those that count."""
        sample = SortedHits(scores.probability, hits)
        samples = hits.shape[1]
        root = samples ** (1 / 3)
        sizes = range(max(1, math.floor(root / SPREAD)), min(samples, math.ceil(root * SPREAD)) + 1)
        evidence = torch.stack([_log_evidence(sample, bins) for bins in sizes], dim=1)
        share = (evidence - evidence.amax(1, keepdim=True)).exp()
        share = torch.where(share < LEAST_SHARE, 0.0, share)
        return _average(sample, list(sizes), share / share.sum(1, keepdim=True))

    def map_scores(self, scores: Scores) -> Tensor:
        """Look up the table."""
        return step_lookup(self.edges, self.values, scores.probability)


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
    used = [(bins, share[:, index : index + 1]) for index, bins in enumerate(sizes) if bool(share[:, index].any())]
    models = []
    for bins, weight in used:
        edges = sample.equal_mass_edges(bins)
        counts, hits = sample.count(edges)
        models.append((edges, (hits + _prior(edges)) / (counts + PRIOR_SAMPLES / bins), weight))
    # A row has no use for the edges of models that are not its own: they move to the end, beyond every score.
    all_edges = torch.cat([torch.where(weight > 0, edges, torch.inf) for edges, _, weight in models], dim=1)
    all_edges = all_edges.sort(1).values
    needed = int(all_edges.isfinite().sum(1).max()) if all_edges.shape[1] else 0
    all_edges = all_edges[:, :needed]
    # A right-closed bin is known by its right edge; that of the last is 1.
    ends = torch.nn.functional.pad(all_edges.clamp_max(1.0), (0, 1), value=1.0)
    values = torch.zeros_like(ends, dtype=torch.float64)
    for edges, table, weight in models:
        values += weight * table.gather(1, torch.searchsorted(edges.contiguous(), ends))
    return all_edges, values
