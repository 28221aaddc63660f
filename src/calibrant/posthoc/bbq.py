"""Bayesian binning into quantiles: an average of histograms, weighted by their evidence."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrant.posthoc.lookup import SortedHits, step_lookup
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
        fewest, most = min(samples, math.floor(root / SPREAD)), min(samples, math.ceil(root * SPREAD))
        sizes = range(max(1, fewest), max(1, most) + 1)
        bins = _Bins(sample, torch.tensor(sizes, device=hits.device))
        evidence = bins.log_evidence()
        share = (evidence - evidence.amax(1, keepdim=True)).exp()
        share = torch.where(share < LEAST_SHARE, 0.0, share)
        return bins.average(share / share.sum(1, keepdim=True))

    def map_scores(self, scores: Scores) -> Mapped:
        """Look up the table."""
        return with_complement(step_lookup(self.edges, self.values, scores.probability))


class _Bins:
    """The bins of binnings of several sizes, one binning after the other: ``(rows, sum of the sizes)``.

    Args:
        sample: The scores and hits.
        sizes: Number of bins of each binning, ``(m,)``.
    """

    def __init__(self, sample: SortedHits, sizes: Tensor) -> None:
        self.model = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
        self.ends = sizes.cumsum(0) - 1
        starts = self.ends - sizes + 1
        whole = sizes[self.model]
        cut = (torch.arange(len(whole), device=sizes.device) - starts[self.model] + 1) / whole
        self.prior = PRIOR_SAMPLES / whole.double()
        places, self.place = sample.places(cut)
        self.edges, until = sample.edges_at(places)
        # A bin ends at one of the places or at the right end of all, and begins where the one before it ends or at the
        # left end. With both ends among the columns, a bin is the difference of two of them.
        to = self.place + 1
        to[self.ends] = len(places) + 1
        since = to.roll(1)
        since[starts] = 0
        until = pad(pad(until, (1, 0)), (0, 1), value=sample.ascending.shape[1])
        bounds = pad(pad(self.edges.double(), (1, 0)), (0, 1), value=1.0)
        hits = sample.cumulated.gather(1, until)
        if bool((until == until[:1]).all()) and sample.mass is None:  # without ties and weights
            until = until[:1]
        mass = until.double() if sample.mass is None else sample.mass.gather(1, until)
        self.counts = _columns(mass, to).sub_(_columns(mass, since)).clamp_(min=0)  # sums of weights are rounded
        self.hits = _columns(hits, to).sub_(_columns(hits, since)).clamp_(min=0).minimum(self.counts)
        middles = _columns(bounds, to).add_(_columns(bounds, since)).div_(2)
        self.right = middles.clamp_(1e-12, 1 - 1e-12).mul_(self.prior)

    def log_evidence(self) -> Tensor:
        """BDeu score of each binning, ``(rows, m)``."""
        wrong = self.prior - self.right
        score = _log_gamma((self.counts - self.hits).add_(wrong))
        score -= _log_gamma(wrong)
        score -= _log_gamma(self.counts + self.prior).sub_(_log_gamma(self.prior.clone()))
        # The rest of the formula is 0 without hits, which are few if there are many classes.
        some = (self.hits > 0).flatten().nonzero().squeeze(1)
        right = self.right.flatten()[some]
        score.view(-1)[some] += _log_gamma(self.hits.flatten()[some] + right).sub_(_log_gamma(right))
        total = score.new_zeros(len(score), len(self.ends))
        return total.index_add_(1, self.model, score)

    def average(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """One table of the weighted models: all their edges together, and between them the weighted mean."""
        inner = torch.ones_like(self.model, dtype=torch.bool)
        inner[self.ends] = False
        inner &= share.any(0)[self.model]
        inner = inner.nonzero().squeeze(1)
        rates = (self.hits + self.right) / (self.counts + self.prior)
        first = (share * rates[:, pad(self.ends[:-1] + 1, (1, 0))]).sum(1, keepdim=True)
        # The mean follows from its first value and its jumps at each place, which are 0 in rows that do not use it.
        jumps = _columns(rates.diff(dim=1), inner).mul_(_columns(share, self.model[inner]))
        places, which = self.place[inner].unique(return_inverse=True)
        rises = jumps.new_zeros(len(jumps), len(places)).index_add_(1, which, jumps).cumsum(1)
        edges, values = self.edges[:, places], torch.cat((first, first + rises), dim=1)
        values = ((values / GRAIN).round() * GRAIN).clamp(GRAIN, 1 - GRAIN)
        repeated = edges.diff(dim=1, prepend=edges.new_full((len(edges), 1), -1.0)) == 0
        edges, values = _without(repeated, edges, values)
        return _without(values.diff(dim=1) == 0, edges, values)


def _columns(values: Tensor, which: Tensor) -> Tensor:
    """Some of the columns; NumPy takes a third of the time of torch."""
    if values.device.type != "cpu":
        return values[:, which]
    return torch.from_numpy(values.numpy().take(which.numpy(), axis=1))


def _log_gamma(values: Tensor) -> Tensor:
    """Logarithm of the gamma function, in place; SciPy's is faster than torch's."""
    if values.device.type != "cpu":
        return values.lgamma_()
    from scipy.special import gammaln

    gammaln(values.numpy(), out=values.numpy())
    return values


def _without(dropped: Tensor, edges: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The table without some edges and the bins to their left; rows with fewer edges end in infinite ones."""
    width = int((~dropped).sum(1).max()) if dropped.shape[1] else 0
    order = dropped.byte().sort(stable=True, dim=1).indices[:, :width]
    last = values[:, -1:]
    edges = edges.masked_fill(dropped, torch.inf).gather(1, order)
    values = torch.where(dropped, last, values[:, :-1]).gather(1, order)
    return edges, torch.cat((values, last), dim=1)
