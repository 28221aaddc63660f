"""The default: a mixture of several methods, with the weights that fit held-out data best."""

import math
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.losses import checks
from calibrant.numerics import log_softmax
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.beta import BetaCalibration
from calibrant.posthoc.centred_isotonic import CentredIsotonicCalibration
from calibrant.posthoc.fitted import saved_settings
from calibrant.posthoc.folds import canonical_order, fold_numbers
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.mixture import brier_weights, mixture_weights_with_prior
from calibrant.posthoc.notices import counted
from calibrant.posthoc.probabilities import FLOOR
from calibrant.posthoc.quadratic import QuadraticScaling
from calibrant.posthoc.smooth import SmoothScaling
from calibrant.posthoc.spline import SplineCalibration
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.venn_abers import VennAbers

Metric = Literal["log_loss", "brier"]
# With fewer rows, nothing is fitted.
FEWEST_ROWS = 10
# With fewer rows, or fewer per class, only a temperature is fitted.
LEAST_ROWS = 50
LEAST_PER_CLASS = 5
# With fewer rows, a gain within one standard error is not taken.
LEAST_ROWS_OF_A_DOUBT = 100
# A sample whose true class had a probability below this share of 1/n refutes the predictions as they are: if they were
# right, n samples would have one in at most one of a hundred cases.
REFUTED = 0.01
# With more classes, maps of single classes have too few samples of each, and only scalings are fitted.
MOST_CLASSES = 50
# Products of a fit, samples times classes squared, beyond which a matrix with little prior takes too long.
MOST_PRODUCTS = 1e9
# Elements of the rows on which the weights are found; with more, only a share of the rows is used, and one fold.
STACKED = 2**20
# Members with less are dropped.
LEAST_WEIGHT = 0.005


# Samples of a class that the model expects, above which their absence is a mistake in the data rather than chance.
EXPECTED = 5.0
# Prior of the weights, in samples that a member alone predicts: no weight is 0 by chance. Beyond these rows it is worth
# less in proportion: a member that is never the best would keep a weight that costs more than it insures.
PRIOR, PRIOR_ROWS = 0.5, 200
# Maps that follow the noise of two classes have to show that they help.
BINARY_PRIOR = {"centred isotonic": 0.05, "class-wise spline": 0.05}
# Smooth scaling is nearly always among the best for two classes: others have to beat it by more than chance, and the
# noise of a log-likelihood grows with the root of the number of samples.
SMOOTH_PRIOR = 0.15
# Members with few parameters, which need less mixing with the uniform distribution: the square of the usual share.
SPARING = ("unchanged", "temperature", "beta")
# Share of the uniform distribution where the predictions are kept: it costs at most this in log loss, and none is 0.
KEPT = 5e-7


class Unchanged(Calibrator):
    """The predictions as they are, as a member of a mixture."""

    least_rows = 0

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Nothing to fit."""

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities, floored."""
        return log_softmax(logits).clamp_min(FLOOR)


class LooseMatrixScaling(StructuredMatrixScaling):
    """Structured matrix scaling with a hundredth of its prior, as a member of a mixture with many classes."""

    strength, tolerance = 0.01, 1e-5


MEMBERS: dict[str, Any] = {
    "unchanged": Unchanged,
    "temperature": TemperatureScaling,
    "svs": StructuredVectorScaling,
    "sms": StructuredMatrixScaling,
    "loose sms": LooseMatrixScaling,
    "quadratic": QuadraticScaling,  # in files that were saved before there was smooth scaling
    "smooth": SmoothScaling,
    "beta": BetaCalibration,
    "isotonic": IsotonicCalibration,
    "centred isotonic": CentredIsotonicCalibration,
    "spline": SplineCalibration,
    "class-wise spline": lambda: SplineCalibration(view="class-wise"),
    "venn-abers": VennAbers,
}


def _fitted(name: str, rows: Tensor, target: Tensor, weight: Tensor | None) -> Calibrator:
    member: Calibrator = MEMBERS[name]()
    member.solve(rows, target, weight)
    if name in SPARING:
        member.smoothing_ **= 2
    return member


class AutoCalibration(Calibrator):
    r"""Mix several methods, with the weights that have the lowest log loss in cross-validation.

    .. math:: \hat p = \sum_m w_m\, \hat p_m, \qquad w \ge 0,\ \sum_m w_m = 1

    Members are the unchanged predictions and temperature scaling. With 50 samples or more, and 5 per class on average,
    there are also:

    - of two classes: smooth scaling, beta calibration, centred isotonic regression, a spline of the class's
      probability, and Venn-Abers prediction;
    - up to 50 classes: structured matrix scaling, and beta, isotonic and spline calibration;
    - of more classes: structured vector and matrix scaling, and the latter with a hundredth of its prior (up to a
      billion samples times classes squared).

    Every member predicts each sample from a fit without its fold; the weights minimise the log loss of the mixture of
    these predictions (Wolpert's stacking), with a Dirichlet prior worth half a sample per member (of two classes a
    twentieth for isotonic and spline maps), and less in proportion beyond 200 samples; that of smooth scaling is worth
    :math:`0.15 \sqrt n` samples. Then members are fitted again on all samples, and those with less than half a percent
    are dropped.

    If the mixture is better than the unchanged predictions in cross-validation, but by less than one standard error, it
    is mixed with them half and half. If it is no better, or not clearly better with fewer than 100 samples, these are
    kept. A notice says so. A sample among n whose true class had a probability below 0.01/n refutes the predictions:
    then any gain in log loss is taken. Kept predictions are mixed with a share of :math:`5 \cdot 10^{-7}` of the
    uniform distribution, so that no probability is 0. A class without samples that the model expects more than a few of
    leaves only the first two members.

    The result is deterministic and does not depend on the order of the samples.

    Args:
        accuracy: ``"keep"`` uses only members that keep the ranking of the classes of every sample, so that no
            prediction changes.
        metric: ``"log_loss"`` or ``"brier"``: the score that the weights minimise.
        folds: Number of folds.

    Attributes:
        weights_: Weight of each member, by name.
        gain_: Decrease of the score in cross-validation, mean and 95 % interval; the weights of each fold come
            from the other folds.
        why_: Why these members were tried, in one sentence.

    References:
        Wolpert, "Stacked Generalization", Neural Networks, 1992.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import AutoCalibration
        >>> draw = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(1000, 3, generator=draw)
        >>> target = logits.softmax(1).multinomial(1, generator=draw).squeeze(1)
        >>> auto = AutoCalibration().fit(3 * logits, target)  # three times as confident as it should be
        >>> auto.predict_proba(torch.tensor([[3.0, 0.0, 0.0]])).round(decimals=1)
        tensor([[0.6000, 0.2000, 0.2000]])
        >>> auto.gain_[0] > 0.1
        True
    """

    least_rows = 0
    found = ("members_", "gain_", "why_")
    weights: Tensor
    members: nn.ModuleDict

    def __init__(
        self, *, accuracy: Literal["free", "keep"] = "free", metric: Metric = "log_loss", folds: int = 5
    ) -> None:
        super().__init__()
        checks.check_choice("accuracy", accuracy, ("free", "keep"))
        checks.check_choice("metric", metric, ("log_loss", "brier"))
        checks.check_count("folds", folds)
        if folds < 2:
            raise ValueError(f"folds must be at least 2, got {folds}")
        self.accuracy = accuracy
        self.metric = metric
        self.folds = int(folds)
        self.members_: tuple[str, ...] = ()
        self.gain_: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self.why_ = ""
        self.members = nn.ModuleDict()
        self.register_buffer("weights", None)

    @property
    def weights_(self) -> dict[str, float]:
        """Weight of each member."""
        self.require_fitted()
        return dict(zip(self.members_, self.weights.tolist(), strict=True))

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Find the weights by cross-validation, and fit the members that have one."""
        order = canonical_order(logits, target, weight)
        logits, target = logits[order], target[order]
        weight = None if weight is None else weight[order]
        names, self.why_ = self._candidates(*logits.shape)
        missing = logits.double().softmax(1).sum(0)[target.bincount(minlength=logits.shape[1]) == 0]
        if bool((missing > EXPECTED).any()):
            names, self.why_ = names[:2], "a class that the model often expects has no samples"
        found = self._stack(names, logits, target, weight)
        kept = [index for index, value in enumerate(found) if value > LEAST_WEIGHT]
        self.members_ = tuple(names[index] for index in kept)
        self.members = nn.ModuleDict()
        for name in self.members_:
            self.members[name] = _fitted(name, logits, target, weight)
        if self.members_ == ("unchanged",):
            self.members["unchanged"].smoothing_ = KEPT  # type: ignore[assignment]
        self.weights = logits.new_tensor(found[kept] / found[kept].sum())

    def _candidates(self, samples: int, classes: int) -> tuple[list[str], str]:
        simple = ["unchanged", "temperature"]
        if samples < FEWEST_ROWS:
            return simple[:1], f"{counted(samples, 'sample')} cannot show what any method would gain"
        if self.accuracy == "keep":
            return simple, "only members that keep the ranking of the classes were asked for"
        if samples < LEAST_ROWS or samples < LEAST_PER_CLASS * classes:
            return simple, f"{samples} samples of {classes} classes are too few for more than a temperature"
        if classes > MOST_CLASSES:
            loose = ["loose sms"] if samples * classes**2 <= MOST_PRODUCTS else []
            return [*simple, "svs", "sms", *loose], f"{classes} classes are too many for maps of single classes"
        others = ["sms", "beta", "isotonic", "spline"]
        if classes == 2:
            others = ["smooth", "beta", "centred isotonic", "class-wise spline", "venn-abers"]
        return [*simple, *others], f"{samples} samples are enough for all members"

    def _stack(self, names: list[str], logits: Tensor, target: Tensor, weight: Tensor | None) -> Any:
        """Weights of the members by their predictions of samples they were not fitted on."""
        if len(names) == 1:
            return np.ones(1)
        stride = math.ceil(logits.numel() / STACKED)
        rows, labels = logits[::stride], target[::stride]
        shares = None if weight is None else weight[::stride]
        number = fold_numbers(rows, labels, min(self.folds, len(rows)))
        used = range(min(self.folds, len(rows)) if stride == 1 else 1)
        if len(rows) < 2:
            return np.eye(len(names))[0]
        predicted = [self._out_of_fold(name, rows, labels, shares, number, used) for name in names]
        out = number < len(used)
        labels, folds = labels[out].cpu(), number[out].cpu().numpy()
        each = np.stack([part.cpu().numpy() for part in predicted])
        share = None if shares is None else shares[out].cpu().numpy()
        weights = self._best(names, each, labels.numpy(), share)
        # The gain is honest only with weights from other samples than those it is measured on.
        gains = np.zeros(len(labels))
        groups = folds if len(used) > 1 else np.arange(len(labels)) % 2
        for group in np.unique(groups):
            here, there = groups == group, groups != group
            others = weights
            if there.any():
                known = None if share is None else share[there]
                others = self._best(names, each[:, there], labels.numpy()[there], known)
            mixed = np.tensordot(others, each[:, here], 1)
            gains[here] = self._losses(each[0, here], labels.numpy()[here]) - self._losses(mixed, labels.numpy()[here])
        part = np.full(len(gains), 1 / len(gains)) if share is None else share / share.sum()
        mean = float(part @ gains)
        error = math.sqrt(float((part**2) @ (gains - mean) ** 2))
        self.gain_ = (mean, mean - 1.96 * error, mean + 1.96 * error)
        # A gain within one standard error may well be chance, and a loss on new samples: half of it is then taken, and
        # none of it from few samples.
        true = rows[out].cpu().double().softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1).numpy()
        refuted = self.metric == "log_loss" and mean > 0 and true[part > 0].min() < REFUTED / len(labels)
        if mean - error <= 0 and refuted:
            self.notice(
                f"a sample of a class that the model gave a probability of {true[part > 0].min():.1g} refutes the "
                f"predictions as they are: they are corrected, though cross-validation on {len(labels)} samples cannot "
                "tell how much that gains; use more data"
            )
        elif mean - error <= 0:
            score = self.metric.replace("_", " ")
            half = mean > 0 and len(labels) >= LEAST_ROWS_OF_A_DOUBT
            self.notice(
                f"in cross-validation on {len(labels)} samples the {score} changes by {-mean:+.4f}, 95 % interval "
                f"{-self.gain_[2]:+.4f} to {-self.gain_[1]:+.4f}, which is {'little' if half else 'no'} evidence of a "
                f"gain: the predictions are {'corrected by half' if half else 'kept'}; use more data"
            )
            if not half:
                return np.eye(len(names))[0]
            weights = (weights + np.eye(len(names))[0]) / 2
        mixed = np.tensordot(weights, each, 1)
        before, after = (1.0 * (predicted.argmax(1) == labels.numpy()) for predicted in (each[0], mixed))
        right = float(part @ before), float(part @ after)
        fall = right[0] - right[1]
        # Beyond one sample, and beyond two standard errors of the paired difference.
        if fall > max(1 / len(labels), 2 * math.sqrt(float((part**2) @ (before - after - fall) ** 2))):
            self.notice(
                f"in cross-validation on {len(labels)} samples the accuracy falls from {right[0]:.1%} to "
                f'{right[1]:.1%}: use accuracy="keep" if that matters'
            )
        if self.accuracy == "keep":  # a little of the unchanged predictions, so that nothing ties
            weights = np.maximum(weights, [0.01, *[0.0] * (len(weights) - 1)])
            weights = weights / weights.sum()
        return weights

    def _out_of_fold(
        self, name: str, rows: Tensor, target: Tensor, weight: Tensor | None, number: Tensor, used: range
    ) -> Tensor:
        pieces, places = [], []
        for fold in used:
            kept, out = number != fold, number == fold
            member = _fitted(name, rows[kept], target[kept], None if weight is None else weight[kept])
            pieces.append(member.mixed(rows[out]).double())
            places.append(out.nonzero().squeeze(1))
        return torch.cat(pieces)[torch.cat(places).argsort()]

    def _best(self, names: list[str], each: Any, target: Any, share: Any) -> Any:
        if self.metric == "brier":
            return brier_weights(each, target, share)
        likelihood = np.maximum(each[:, np.arange(len(target)), target].T, math.exp(FLOOR))
        samples = len(target) if share is None else share.sum()
        prior = np.array([BINARY_PRIOR.get(name, PRIOR) for name in names]) * min(1.0, PRIOR_ROWS / samples)
        if "smooth" in names:
            prior[names.index("smooth")] = SMOOTH_PRIOR * math.sqrt(samples)
        return mixture_weights_with_prior(likelihood, prior, share)

    def _losses(self, predicted: Any, target: Any) -> Any:
        true = predicted[np.arange(len(target)), target]
        if self.metric == "brier":
            return (predicted**2).sum(1) - 2 * true + 1
        return -np.log(np.maximum(true, math.exp(FLOOR)))

    def mixed(self, rows: Tensor) -> Tensor:
        """Return the mixture of the members' probabilities."""
        parts = [cast(Calibrator, member).mixed(rows) for member in self.members.values()]
        return torch.einsum("m,mnc->nc", self.weights.to(rows.dtype), torch.stack(parts))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the mixture of the members' probabilities."""
        return self.mixed(logits)

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Return the logarithms of the mixture."""
        return self.mixed(logits).clamp_min(math.exp(FLOOR)).log()

    def mixed_logits(self, calibrated: Tensor) -> Tensor:
        """Return the logits as they are: the members are mixed with the uniform distribution already."""
        return calibrated

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Leave out the cross-check, which is part of the method."""
        super(Calibrator, self).examine(rows, target, weight)
        if rows.shape[0] < FEWEST_ROWS:
            self.notice(f"{self.why_}, and the predictions are left as they are: use more data")
        if self.members_ != ("unchanged",):
            self.absent_classes(target)
        self.check_order(rows, target)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make the members first, so that their states find them."""
        state = state_dict.get(prefix + "_extra_state")
        if state is not None and self._refusal(saved_settings(state)) is None:
            names = saved_settings(state)["members_"]
            self.members = nn.ModuleDict({name: MEMBERS[name]() for name in names})
        super()._load_from_state_dict(state_dict, prefix, *rest)
