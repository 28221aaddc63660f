"""Prior shift: calibrated probabilities where the classes have other frequencies than in the held-out data."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, is_tensor, of_tensor
from calibrant.inputs import FitWarning, counted
from calibrant.posthoc.fit import Calibrator, HeldOut
from calibrant.posthoc.map import TINY, Affine, Map, evaluated
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.solvers import mixture_weights

Estimate = Literal["em", "confusion"]

# Rows below which an estimate of the frequencies has a notice.
LEAST_NEW_ROWS = 100
# Condition number of the confusion matrix above which its inverse is mostly noise.
ILL_CONDITIONED = 1e3
# Weight of the equation "the frequencies sum to 1" among those of the classes.
SUM_TO_ONE = 1e3


class PriorShift(Calibrator):
    r"""Calibrate, then account for class frequencies that differ from those of the held-out data.

    If classes become more or less frequent but look the same as before (prior shift, also label shift), Bayes' rule
    gives the new probabilities from calibrated old ones. With the old frequencies s and the new ones q,

    .. math:: \hat p_k \propto p_k \, q_k / s_k.

    The old frequencies are those of the target in ``fit``. The new ones are given, or estimated by :meth:`adapt`.

    Args:
        prior: Frequency of each class where the calibrator is used; None for those of the held-out data.
        method: Name of the calibrator in ``calibrant.posthoc.registry`` that comes first.

    Attributes:
        source_: Frequencies of the classes in the held-out data, mixed with a share of 1 / (n + 1) of equal ones.

    Example:
        A test for a disease, fitted where half of the patients have it, and used where 5 % do:

        >>> draw = np.random.default_rng(0)
        >>> ill = np.arange(4000) % 2
        >>> logits = draw.normal(size=4000) + 2 * ill - 1
        >>> shift = PriorShift([0.95, 0.05], "platt").fit(2 * logits, ill)
        >>> float(shift.predict_proba(np.zeros(1))[0, 1].round(2))
        0.05
    """

    found = ("prior", "source_", "confusion_")
    prior: tuple[float, ...] | None
    source_: Array
    confusion_: Array
    calibrator: Calibrator

    def __init__(self, prior: Sequence[float] | None = None, method: str = "auto") -> None:
        super().__init__()
        inputs.check_choice("method", method, tuple(METHODS))
        self.prior = None if prior is None else checked_prior(prior)
        self.method = method
        self.calibrator = METHODS[method]()

    def fit_map(self, data: HeldOut) -> Map:
        """Fit the calibrator, and note frequencies and mean predictions of the classes."""
        classes = data.logits.shape[1]
        if self.prior is not None and len(self.prior) != classes:
            raise ValueError(f"prior must have a frequency for each of the {classes} classes, got {len(self.prior)}")
        self.calibrator = METHODS[self.method]()
        self.calibrator.solve(data)
        mixed = evaluated(self.calibrator.map_.probabilities, data.logits).astype(np.float64)
        hits = (data.target[:, None] == np.arange(classes)) * data.weights[:, None]
        counts = hits.sum(0)
        # A class without samples is taken to be predicted perfectly, rather than not at all.
        means = hits.T @ mixed / np.maximum(counts, 1e-300)[:, None]
        self.confusion_ = np.where(counts[:, None] > 0, means, np.eye(classes))
        rest = 1 / (1 + data.count)
        self.source_ = (1 - rest) * counts / data.count + rest / classes
        return self.moved(self.calibrator.map_)

    def moved(self, known: Map) -> Map:
        if self.prior is None:
            return known
        change = np.maximum(self.prior, TINY) / self.source_
        return Affine(np.array(1.0), np.log(change), known, of_log_probabilities=True)

    def examine(self, data: HeldOut) -> None:
        self.calibrator.labels_ = self.labels_
        self.calibrator.examine(data)
        self.notices_ += self.calibrator.notices_

    def adapt(self, logits: Any, *, method: Estimate = "em") -> Array:
        """Estimate the frequencies of the classes in new samples without labels, use them from now on, and return them.

        Args:
            logits: Logits of the new samples, as for ``predict_proba``.
            method: ``"em"``, the frequencies with the highest likelihood of the new samples; or ``"confusion"``, those
                that explain the mean prediction, given the mean prediction for every class of the held-out data.
        """
        inputs.check_choice("method", method, ("em", "confusion"))
        rows = self.rows(logits)
        if len(rows) == 0:
            raise ValueError("adapt needs at least 1 sample, got none: pass logits of new samples")
        known = self.map_ if self.prior is None else self.map_.of
        predicted = evaluated(known.probabilities, of_tensor(rows) if is_tensor(rows) else rows).astype(np.float64)
        if len(predicted) < LEAST_NEW_ROWS:
            few = f"{counted(len(predicted), 'sample')} {'is' if len(predicted) == 1 else 'are'} few"
            inputs.warn(f"PriorShift: {few} to estimate frequencies from: give a prior, or more samples", FitWarning)
        found = mixture_weights(predicted / self.source_) if method == "em" else self._by_confusion(predicted.mean(0))
        self.prior = tuple(found.tolist())
        self.map_ = self.moved(known)
        return found

    def _by_confusion(self, mean: Array) -> Array:
        """Frequencies that explain a mean prediction: least squares among those that are not negative."""
        from scipy.optimize import nnls

        confusion = self.confusion_.T
        condition = float(np.linalg.cond(confusion))
        if condition > ILL_CONDITIONED:
            inputs.warn(
                "PriorShift: some classes can hardly be separated (condition number of the confusion matrix: "
                f'{condition:.2g}), so their frequencies are uncertain: use method="em"',
                FitWarning,
            )
        system = np.vstack((confusion, np.full(len(mean), SUM_TO_ONE)))
        found, _ = nnls(system, np.append(mean, SUM_TO_ONE))
        return np.asarray(found / found.sum())


def checked_prior(prior: Sequence[float]) -> tuple[float, ...]:
    """Check frequencies of classes; those that sum to nearly one, as rounded ones do, are divided by their sum."""
    values = np.asarray(prior, dtype=np.float64)
    sums_to_one = abs(values.sum() - 1) <= inputs.TOLERANCE
    if values.ndim != 1 or len(values) < 2 or not (values >= 0).all() or not sums_to_one:
        raise ValueError(f"prior must be one frequency of at least 0 for each class, and sum to 1, got {list(prior)!r}")
    return tuple((values / values.sum()).tolist())
