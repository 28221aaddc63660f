"""Prior shift: calibrated probabilities where the classes have other frequencies than in the held-out data."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.containers import Array
from calibrant.posthoc.fitted import saved_settings
from calibrant.posthoc.methods import METHODS
from calibrant.posthoc.mixture import mixture_weights
from calibrant.posthoc.notices import FitWarning, counted
from calibrant.posthoc.probabilities import FLOOR

Estimate = Literal["em", "confusion"]
# Distance of the sum of given frequencies from 1 that rounding explains.
TOLERANCE = 0.005
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

    The old frequencies are those of the target in ``fit``. The new ones are given, or estimated by :meth:`adapt` from
    logits of new samples without labels:

    - ``"em"`` finds the frequencies with the highest likelihood of the new samples, as the EM algorithm of Saerens et
      al. does. It is the more precise one if probabilities are calibrated, which is what comes first here.
    - ``"confusion"`` finds the frequencies that explain the mean prediction, given the mean prediction for every class
      of the held-out data (Lipton et al.). It does not need calibrated probabilities.

    The predicted class may change. Other kinds of shift, such as blurred images, are not corrected: recalibrate on
    data from the new source.

    Args:
        prior: Frequency of each class where the calibrator is used; None for those of the held-out data.
        method: Name of the calibrator in ``posthoc.METHODS`` that comes first.

    Attributes:
        source_: Frequencies of the classes in the held-out data, mixed with a share of 1 / (n + 1) of equal ones.

    References:
        Saerens, Latinne, Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori Probabilities",
        Neural Computation 2002; Lipton, Wang, Smola, "Detecting and Correcting for Label Shift with Black Box
        Predictors", ICML 2018; Alexandari, Kundaje, Shrikumar, "Maximum Likelihood with Bias-Corrected Calibration is
        Hard-To-Beat at Label Shift Adaptation", ICML 2020.

    Example:
        A test for a disease, fitted where half of the patients have it, and used where 5 % do:

        >>> import torch
        >>> from calibrant.posthoc import PriorShift
        >>> draw = torch.Generator().manual_seed(0)
        >>> ill = torch.arange(4000) % 2
        >>> logits = torch.randn(4000, generator=draw) + 2 * ill - 1
        >>> shift = PriorShift([0.95, 0.05], "platt").fit(2 * logits, ill)
        >>> round(shift.predict_proba(torch.zeros(1))[0, 1].item(), 2)
        0.05
        >>> rare = torch.rand(4000, generator=draw) < 0.2
        >>> shift.adapt(2 * (torch.randn(4000, generator=draw) + 2 * rare - 1)).round(1)
        array([0.8, 0.2])
    """

    least_rows = 0
    decisive = ("method",)
    found = ("prior",)
    source: Tensor
    confusion: Tensor
    calibrator: Calibrator

    def __init__(self, prior: Sequence[float] | None = None, method: str = "auto") -> None:
        super().__init__()
        checks.check_choice("method", method, tuple(METHODS))
        self.prior: tuple[float, ...] | None = None if prior is None else checked_prior(prior)
        self.method = method
        self.calibrator = METHODS[method]()
        self.register_buffer("source", None)
        self.register_buffer("confusion", None)

    @property
    def source_(self) -> Array:
        """Frequencies of the classes in the held-out data."""
        self.require_fitted()
        return self.source.cpu().numpy()

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Fit the calibrator, and note frequencies and mean predictions of the classes."""
        classes = logits.shape[1]
        if self.prior is not None:
            _check_length(self.prior, classes)
        self.calibrator = METHODS[self.method]()
        self.calibrator.solve(logits, target, weight)
        share = torch.ones(len(target), dtype=torch.float64) if weight is None else weight
        share = share.to(logits.device)
        mixed = self.calibrator.mixed(logits).double()
        counts = share.new_zeros(classes).index_add_(0, target, share)
        sums = share.new_zeros(classes, classes).index_add_(0, target, mixed * share[:, None])
        # A class without samples is taken to be predicted perfectly, rather than not at all.
        means = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1e-300)[:, None], torch.eye(classes).to(sums))
        rest = 1 / (1 + float(share.sum()))
        self.source = ((1 - rest) * counts / counts.sum() + rest / classes).to(logits.dtype)
        self.confusion = means.to(logits.dtype)

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Collect the notices of the calibrator; a cross-check on data with the old frequencies says nothing here."""
        self.calibrator.labels_ = self.labels_
        self.calibrator.examine(rows, target, weight)
        self.notices_ += self.calibrator.notices_

    def adapt(self, logits: Any, *, method: Estimate = "em") -> Array:
        """Estimate the frequencies of the classes in new samples without labels, use them from now on, and return them.

        Args:
            logits: Logits of the new samples, as for ``predict_proba``.
            method: ``"em"`` or ``"confusion"``.

        Raises:
            ValueError: If there are no samples.
        """
        checks.check_choice("method", method, ("em", "confusion"))
        with torch.no_grad():
            rows = self.rows(logits)
            if len(rows) == 0:
                raise ValueError("adapt needs at least 1 sample, got none: pass logits of new samples")
            predicted = self.calibrator.mixed(rows).double().cpu().numpy()
        if len(predicted) < LEAST_NEW_ROWS:
            few = f"{counted(len(predicted), 'sample')} {'is' if len(predicted) == 1 else 'are'} few"
            _warn(f"{few} to estimate frequencies from: give a prior, or more samples")
        old = np.asarray(self.source.double().cpu())
        found = mixture_weights(predicted / old) if method == "em" else self._by_confusion(predicted.mean(0))
        self.prior = tuple(float(share) for share in found)
        return found

    def _by_confusion(self, mean: Array) -> Array:
        """Frequencies that explain a mean prediction: least squares among those that are not negative."""
        from scipy.optimize import nnls

        confusion = self.confusion.double().cpu().numpy().T
        condition = float(np.linalg.cond(confusion))
        if condition > ILL_CONDITIONED:
            _warn(
                f"some classes can hardly be separated (condition number of the confusion matrix: {condition:.2g}), "
                'so their frequencies are uncertain: use method="em"'
            )
        system = np.vstack((confusion, np.full(len(mean), SUM_TO_ONE)))
        found, _ = nnls(system, np.append(mean, SUM_TO_ONE))
        return np.asarray(found / found.sum())

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities, moved by the change of the frequencies."""
        known = self.calibrator.mixed(logits).clamp_min(math.exp(FLOOR)).log()
        if self.prior is None:
            return known
        prior = known.new_tensor(self.prior).clamp_min(math.exp(FLOOR))
        return known + prior.log() - self.source.to(known.dtype).log()

    # The calibrator's answer is mixed with the uniform distribution already.
    def mixed(self, rows: Tensor) -> Tensor:
        """Return the probabilities under the new frequencies."""
        return self.probabilities(rows)

    def mixed_logits(self, calibrated: Tensor) -> Tensor:
        """Return the logits as they are."""
        return calibrated

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make the calibrator first, so that its state finds it."""
        state = state_dict.get(prefix + "_extra_state")
        if state is not None and self._refusal(saved_settings(state)) is None:
            self.calibrator = METHODS[self.method]()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def checked_prior(prior: Sequence[float]) -> tuple[float, ...]:
    """Check frequencies of classes; those that sum to nearly one, as rounded ones do, are divided by their sum."""
    values = np.asarray(prior, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"prior must be one frequency of at least 0 for each class, got {list(prior)!r}")
    if abs(values.sum() - 1) > TOLERANCE:
        raise ValueError(
            f"prior must sum to 1, got {list(prior)!r}, which sum to {values.sum():.4g}: divide by the sum"
        )
    return tuple((values / values.sum()).tolist())


def _check_length(prior: tuple[float, ...], classes: int) -> None:
    if len(prior) != classes:
        raise ValueError(f"prior must have a frequency for each of the {classes} classes, got {len(prior)}")


def _warn(text: str) -> None:
    warnings.warn(f"PriorShift: {text}", FitWarning, stacklevel=3)
