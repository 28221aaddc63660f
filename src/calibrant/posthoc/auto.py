"""The default: a mixture of several methods, with the weights that fit held-out data best."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.inputs import counted
from calibrant.posthoc import curves, scaling
from calibrant.posthoc.fit import Calibrator, HeldOut, accuracies, canonical_order, fold_of, out_of_fold
from calibrant.posthoc.map import FLOOR, TINY, Logits, Map, Mixed, Mixture, evaluated
from calibrant.posthoc.solvers import mixture_weights


@dataclass(frozen=True)
class Rules:
    """All constants of the method; a number in a reason is the mean rise of the log loss in the arena without it."""

    # With fewer samples nothing is fitted: they cannot show a gain.
    rows_of_a_fit: int = 10
    # With fewer samples, or fewer per class, only a temperature is tried: .0003, and .01 with 60 samples of CIFAR-100.
    rows_of_all_members: int = 50
    rows_per_class: int = 5
    # With fewer samples a gain within one standard error is not taken at all: .0001.
    rows_of_a_half_gain: int = 100
    # A true class less likely than this over n refutes the predictions as they are, and any gain is taken: .0012 on the
    # 764 pairs of the fresh tables of the arena.
    refuting: float = 0.01
    # A class without samples that the model expects more often than this leaves only a temperature: the samples are
    # defective, and other members would call the class impossible. The arena has no such samples.
    absent: float = 5.0
    # With more classes, curves of single classes have too few samples, and take long.
    classes: int = 50
    # Of more logits only a share is cross-validated, in one fold, for the time it takes.
    elements: int = 2**20
    # Members with less weight are dropped: they cost time, and change .00002.
    least_weight: float = 0.005
    # Samples that every member is taken to predict alone, so that no weight is 0 by chance; worth less in proportion
    # beyond so many rows: .0001.
    prior: float = 0.5
    rows_of_the_prior: int = 200
    # Centred isotonic and spline maps of two classes must show a gain: .00005.
    prior_of_curves: float = 0.05
    # Times the root of n: smooth scaling is nearly always among the best: .0002.
    prior_of_smooth: float = 0.15
    # Power of the share of the uniform distribution in members with few parameters: .0003.
    power_of_sparing: int = 2
    # Share of the uniform distribution in predictions that are kept, so that none is 0.
    kept: float = 5e-7


RULES = Rules()
SPARING = ("unchanged", "temperature", "beta")
BINARY_CURVES = ("centred isotonic", "class-wise spline")


class Unchanged(Calibrator):
    """The predictions as they are, as a member of a mixture."""

    def fit_map(self, data: HeldOut) -> Map:
        return self.mixed(Logits(), data)


class LooseMatrixScaling(scaling.StructuredMatrixScaling):
    """Structured matrix scaling with a hundredth of its prior, as a member of a mixture with many classes."""

    strength, tolerance = 0.01, 1e-5


MEMBERS: dict[str, Any] = {
    "unchanged": Unchanged,
    "temperature": scaling.TemperatureScaling,
    "svs": scaling.StructuredVectorScaling,
    "sms": scaling.StructuredMatrixScaling,
    "loose sms": LooseMatrixScaling,
    "smooth": curves.SmoothScaling,
    "beta": curves.BetaCalibration,
    "isotonic": curves.IsotonicCalibration,
    "centred isotonic": curves.CentredIsotonicCalibration,
    "spline": curves.SplineCalibration,
    "class-wise spline": lambda: curves.SplineCalibration(view="class-wise"),
    "venn-abers": curves.VennAbers,
}


def _member(name: str, data: HeldOut) -> Map:
    found: Map = MEMBERS[name]().fit_map(data)
    if name in SPARING and isinstance(found, Mixed):
        return replace(found, share=found.share**RULES.power_of_sparing)
    return found


def _losses(probabilities: Array, data: HeldOut) -> Array:
    return np.asarray(-np.maximum(np.log(np.maximum(probabilities[data.of_target], TINY)), FLOOR))


class AutoCalibration(Calibrator):
    """Mix several methods, with the weights that have the lowest log loss in cross-validation: :doc:`/methods/auto`.

    The result is deterministic and does not depend on the order of the samples. Without clear evidence of a gain, the
    predictions are corrected by half or kept, and a notice says so.

    Args:
        accuracy: ``"keep"`` uses only members that keep the ranking of the classes of every sample, so that no
            prediction changes.
        folds: Number of folds.

    Attributes:
        weights_: Weight of each member, by name.
        gain_: Decrease of the log loss in cross-validation, mean and 95 % interval; the weights of each fold come
            from the other folds.
        why_: Why these members were tried, in one sentence.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> logits = draw.normal(size=(1000, 3))
        >>> target = (logits + draw.gumbel(size=(1000, 3))).argmax(1)  # of a softmax of the logits
        >>> auto = AutoCalibration().fit(3 * logits, target)  # three times as confident as it should be
        >>> auto.predict_proba(np.array([[3.0, 0.0, 0.0]])).round(1)
        array([[0.6, 0.2, 0.2]])
        >>> auto.gain_[0] > 0.1
        True
    """

    found = ("weights_", "gain_", "why_")
    least_rows, reports_harm = 0, True
    weights_: dict[str, float]
    gain_: tuple[float, float, float]
    why_: str

    def __init__(self, *, accuracy: Literal["free", "keep"] = "free", folds: int = 5) -> None:
        super().__init__()
        inputs.check_choice("accuracy", accuracy, ("free", "keep"))
        self.accuracy = accuracy
        self.folds = inputs.check_count("folds", folds)
        if folds < 2:
            raise ValueError(f"folds must be at least 2, got {folds}")

    def fit_map(self, data: HeldOut) -> Map:
        """Find the weights by cross-validation, and fit the members that have one."""
        self.gain_ = (0.0, 0.0, 0.0)
        data = data.take(canonical_order(data))
        names, self.why_ = self._candidates(data)
        found = self._weights(names, data)
        kept = found > RULES.least_weight
        found = found[kept] / found[kept].sum()
        names = [name for name, keep in zip(names, kept, strict=True) if keep]
        self.weights_ = dict(zip(names, found.tolist(), strict=True))
        if names == ["unchanged"]:
            return Mixed(RULES.kept, Logits())
        maps = tuple(_member(name, data) for name in names)
        return maps[0] if len(maps) == 1 else Mixture(found, maps)

    def _candidates(self, data: HeldOut) -> tuple[list[str], str]:
        """Members to try, and why these."""
        classes, count = data.logits.shape[1], data.count
        simple = ["unchanged", "temperature"]
        if count < RULES.rows_of_a_fit:
            return simple[:1], f"{counted(round(count), 'sample')} cannot show what any method would gain"
        expected = evaluated(lambda xp, rows: xp.softmax(xp.wide(rows)), data.logits)
        without = np.bincount(data.target, minlength=classes) == 0
        if (data.weights @ expected[:, without] > RULES.absent).any():
            return simple, "a class that the model often expects has no samples"
        if self.accuracy == "keep":
            return simple, "only members that keep the ranking of the classes were asked for"
        if count < max(RULES.rows_of_all_members, RULES.rows_per_class * classes):
            return simple, f"{count:g} samples of {classes} classes are too few for more than a temperature"
        if classes > RULES.classes:
            return [*simple, "svs", "sms", "loose sms"], f"{classes} classes are too many for maps of single classes"
        others = ["sms", "beta", "isotonic", "spline"]
        if classes == 2:
            others = ["smooth", "beta", "centred isotonic", "class-wise spline", "venn-abers"]
        return [*simple, *others], f"{count:g} samples are enough for all members"

    def _weights(self, names: list[str], data: HeldOut) -> Array:
        """Weights of the members by their predictions of samples they were not fitted on."""
        only_first: Array = np.eye(len(names))[0]
        if len(names) == 1:
            return only_first
        stride = math.ceil(data.logits.size / RULES.elements)
        if stride > 1:
            data = data.take(fold_of(data, stride) == 0)
        fold = fold_of(data, self.folds)
        used = range(self.folds if stride == 1 else 1)
        found = [out_of_fold(partial(_member, name), data, fold, used) for name in names]
        each, order = np.stack([probabilities for probabilities, _ in found]), found[0][1]
        data, fold = data.take(order), fold[order]
        weights = self._best(names, each, data)
        # The gain is honest only with weights from other samples than those it is measured on.
        gains = np.zeros(len(fold))
        groups = fold if len(used) > 1 else np.arange(len(fold)) % 2
        for group in np.unique(groups):
            here, there = groups == group, groups != group
            others = self._best(names, each[:, there], data.take(there)) if there.any() else weights
            mixed = np.tensordot(others, each[:, here], 1)
            tested = data.take(here)
            gains[here] = _losses(each[0, here], tested) - _losses(mixed, tested)
        mean = float(data.share @ gains)
        error = math.sqrt(float(data.share @ (gains - mean) ** 2) / data.count)
        self.gain_ = (mean, mean - 1.96 * error, mean + 1.96 * error)
        if mean - error <= 0:
            share = self._share_without_evidence(data)
            if share == 0:
                return only_first
            weights = share * weights + (1 - share) * only_first
        right, falls = accuracies(each[0], np.tensordot(weights, each, 1), data)
        if falls:
            self.notice(
                f"in cross-validation on {data.count:g} samples the accuracy falls from {right[0]:.1%} to "
                f'{right[1]:.1%}: use accuracy="keep" if that matters'
            )
        if self.accuracy == "keep":  # a little of the unchanged predictions, so that nothing ties
            weights = np.maximum(weights, 0.01 * only_first)
            weights = weights / weights.sum()
        return weights

    def _share_without_evidence(self, data: HeldOut) -> float:
        """The share of the mixture if its gain is less than one standard error, of which there is a notice."""
        mean, low, high = self.gain_
        as_they_are = evaluated(lambda xp, rows: xp.softmax(xp.wide(rows)), data.logits)
        lowest = float(as_they_are[data.of_target].min())
        share, because, done = 0.0, "", "kept"
        if mean > 0 and lowest < RULES.refuting / data.count:
            share, because, done = 1.0, f", but a true class had a probability of {lowest:.1g}", "corrected"
        elif mean > 0 and data.count >= RULES.rows_of_a_half_gain:
            share, done = 0.5, "corrected by half"
        self.notice(
            f"in cross-validation on {data.count:g} samples the log loss changes by {-mean:+.4f}, 95 % interval "
            f"{-high:+.4f} to {-low:+.4f}, which is {'little' if mean > 0 else 'no'} evidence of a gain{because}: the "
            f"predictions are {done}; use more data"
        )
        return share

    def _best(self, names: list[str], each: Array, data: HeldOut) -> Array:
        """The weights with the lowest log loss."""
        likelihood = np.maximum(each[:, *data.of_target].T, TINY)
        prior = np.array([RULES.prior_of_curves if name in BINARY_CURVES else RULES.prior for name in names])
        prior *= min(1.0, RULES.rows_of_the_prior / data.count)
        if "smooth" in names:
            prior[names.index("smooth")] = RULES.prior_of_smooth * math.sqrt(data.count)
        return mixture_weights(likelihood, data.weight, prior)

    def examine(self, data: HeldOut) -> None:
        """Add a notice if nothing was fitted."""
        self.moves_classes = [*self.weights_] != ["unchanged"]
        super().examine(data)
        if data.count < RULES.rows_of_a_fit:
            self.notice(f"{self.why_}, and the predictions are left as they are: use more data")
