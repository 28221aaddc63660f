"""What all calibrators share: checked samples and their folds, a fit that makes a map, and notices."""

import inspect
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from calibrant import frames, inputs
from calibrant.frames import Array, IndexArray, Marks, is_tensor, of_tensor
from calibrant.inputs import FitWarning, counted
from calibrant.posthoc.map import FLOOR, TINY, Map, Mixed, NumpyOps, TorchOps, evaluated

if TYPE_CHECKING:
    from torch import nn

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio

# With fewer samples, whether predictions are right is chance.
FEWEST = 10
# Fits of up to so many rows, or four times those needed, and so many logits are compared with doing nothing.
COMPARED, COMPARED_ELEMENTS = 200, 2**16
LIKE_PROBABILITIES = "these logits look like probabilities: pass logits_from_probabilities(probabilities)"


class HeldOut(NamedTuple):
    """Checked held-out samples."""

    logits: Array  # (N, C), float32 or float64, finite
    target: IndexArray  # class indices, (N,)
    weight: Array | None  # (N,) in float64, all positive; None if all are 1

    @property
    def count(self) -> float:  # type: ignore[override]
        """Number of samples, of which each counts as often as its weight says."""
        return len(self.target) if self.weight is None else float(self.weight.sum())

    @property
    def share(self) -> Array:
        """Weights that sum to 1, ``(N,)``."""
        return self.weights / self.count

    @property
    def weights(self) -> Array:
        """Weights of the samples, ``(N,)``, also if all are 1."""
        return np.ones(len(self.target)) if self.weight is None else self.weight

    @property
    def of_target(self) -> tuple[IndexArray, IndexArray]:
        """Row and column of each sample's class."""
        return np.arange(len(self.target)), self.target

    def take(self, rows: IndexArray | Array) -> "HeldOut":
        """Some of the samples, by index or mask."""
        return HeldOut(self.logits[rows], self.target[rows], None if self.weight is None else self.weight[rows])


def random_words(seed: int, count: int) -> IndexArray:
    """Random 64-bit numbers by SplitMix64: the same with every version of every library."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(seed % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return (state ^ (state >> np.uint64(31))).view(np.int64)


def canonical_order(data: HeldOut) -> IndexArray:
    """A permutation of the samples, the same sequence in whatever order they came: by class, and a random projection.

    The last bits of logits, which depend on the processor, can only exchange neighbours that are nearly equal.
    """
    factors = random_words(0, data.logits.shape[1]) / 2.0**63

    def projected(xp: NumpyOps, rows: Array) -> Array:
        wide = xp.wide(rows)
        below = np.maximum(wide - xp.largest(wide), -1e30)
        # Term by term: the order of other sums, and so their last bit, depends on the processor.
        return np.asarray(xp.cumsum(below * factors)[:, -1])

    place = evaluated(projected, data.logits).astype(np.float32)  # equal where only rounding differs
    constant = data.logits.max(1)  # which a softmax does not see, but matrix scaling does
    return np.lexsort((data.weights, constant, place, data.target))


def fold_of(data: HeldOut, folds: int) -> IndexArray:
    """Fold of each sample, whatever its weight: each class is spread evenly, and the samples' order does not matter."""
    order = canonical_order(data)
    # At random within each class: neighbours dealt to different folds would predict one another, and promise too much.
    order = order[np.lexsort((random_words(1, len(order)), data.target[order]))]
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.arange(len(order)) % folds
    return fold


def out_of_fold(
    fit_map: Callable[[HeldOut], Map], data: HeldOut, fold: IndexArray, numbers: Iterable[int]
) -> tuple[Array, IndexArray]:
    """Probabilities of the samples of some folds by fits without their fold, in float64, and their places."""
    found, places = [], []
    for number in numbers:
        here = fold == number
        if here.any():
            fitted = fit_map(data.take(~here))
            found.append(evaluated(fitted.probabilities, data.logits[here]))
            places.append(np.flatnonzero(here))
    return np.concatenate(found).astype(np.float64), np.concatenate(places)


def accuracies(before: Array, after: Array, data: HeldOut) -> tuple[tuple[float, float], bool]:
    """Accuracy before and after, and whether it falls by more than a sample and two standard errors of the fall."""
    was, became = (1.0 * (predicted.argmax(1) == data.target) for predicted in (before, after))
    right = float(data.share @ was), float(data.share @ became)
    fall = right[0] - right[1]
    error = math.sqrt(float(data.share @ (was - became - fall) ** 2) / data.count)
    # Half of another sample is for rounding.
    return right, fall > max(1.5 / data.count, 2 * error)


class Fitted:
    """Base class of anything fitted to held-out logits: ``fit`` makes a map, from which alone predictions are made.

    Options are attributes of the names of the arguments of ``__init__``.

    Attributes:
        map_: The fitted map.
        labels_: Label of each class, or None for 0, 1, ...
        class_count_: Number of classes.
        samples_: Number of samples of the fit.
        notices_: What is doubtful about the fit.
    """

    # Classes of this package that can be saved, by name.
    kinds: ClassVar[dict[str, type["Fitted"]]] = {}
    # Results of the fit, besides the map, that a file keeps.
    found: tuple[str, ...] = ()
    one_column_is_binary = True
    in_numpy = True  # unless the map has tensors

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith("calibrant."):
            Fitted.kinds[cls.__name__] = cls

    def __init__(self) -> None:
        self.map_: Any = None
        self.class_count_: int | None = None
        self.labels_: list[Any] | None = None
        self.samples_: int | None = None
        self.notices_: list[str] = []
        self._warned = False

    @property
    def classes_(self) -> Marks:
        """Label of each class, in the order of the columns; 0, 1, ... unless the target had names."""
        self.require_fitted()
        return np.arange(self.class_count_ or 0) if self.labels_ is None else np.asarray(self.labels_)

    def notice(self, text: str) -> None:
        """Record something doubtful about the fit; ``fit`` warns about it when it is done."""
        self.notices_.append(text)

    def warned(self) -> Self:
        """Warn about all notices, and return self."""
        for notice in self.notices_:
            inputs.warn(f"{type(self).__name__}: {notice}", FitWarning)
        return self

    def examine(self, data: HeldOut) -> None:
        """Add notices about the data and what was fitted."""
        if inputs.looks_like_probabilities(data.logits):
            self.notice(LIKE_PROBABILITIES)
        if data.weight is not None and data.count < 0.1 * len(data.target):
            self.notice(
                f"the weights of {counted(len(data.target), 'sample')} sum to {data.count:.3g}, and count as that "
                "many samples: divide them by their mean"
            )

    def rows(self, given: Any) -> Any:
        """Check logits to be calibrated and convert them to ``(N, C)``, at least float32; ``(0,)`` to ``(0, C)``."""
        self.require_fitted()
        known = True
        if is_tensor(given):
            from calibrant.numerics import readable, traced

            known = not traced()
            if self.in_numpy and readable(given) and not given.requires_grad:
                given = of_tensor(given, "logits")  # to the bit what an array gives
        else:
            given = inputs.numbers("logits", inputs.in_order(given, self.labels_))
        shape = tuple(given.shape)
        if known and shape == (0,):
            return np.zeros((0, self.class_count_ or 0))
        rows = inputs.logit_rows(given, one_is_binary=self.one_column_is_binary)
        self._check_classes(shape, rows.shape[1])
        values = rows.detach() if is_tensor(rows) else rows
        if known and 0 not in values.shape and not (math.isfinite(values.min()) and math.isfinite(values.max())):
            raise ValueError("logits must be finite, got NaN or infinity: leave out such samples or fix the model")
        if known and not self._warned and inputs.looks_like_probabilities(inputs.numbers("logits", values[:64])):
            self._warned = True
            inputs.warn(f"{type(self).__name__}: {LIKE_PROBABILITIES}", FitWarning)
        return rows

    def in_container(self, given: Any, rows: Any, *, of_logits: bool = False) -> Any:
        """Rows of classes in the container that the logits came in; see :func:`calibrant.inputs.in_container`."""
        return inputs.in_container(given, rows, self.classes_.tolist(), of_logits=of_logits)

    def _check_classes(self, shape: tuple[int, ...], classes: int) -> None:
        if classes == self.class_count_ and (len(shape) > 1 or self.one_column_is_binary):
            return
        remedy = "use the model it was fitted for, or fit again"
        if len(shape) == 1 and shape[0] == self.class_count_:
            remedy = "pass logits[None] if they are the logits of one sample"
        of = "two classes" if len(shape) < 2 or shape[1] == 1 else f"{classes} classes"
        raise ValueError(
            f"{type(self).__name__} was fitted on {self.class_count_} classes, got logits of {of}, of shape {shape}: "
            f"{remedy}"
        )

    def require_fitted(self) -> None:
        """Raise ``RuntimeError`` before ``fit``."""
        if self.map_ is None:
            raise RuntimeError(
                f"{type(self).__name__} is not fitted: call fit(logits, target) on held-out data, or load a file"
            )

    def module(self) -> "nn.Module":
        """Return the fitted map as an ``nn.Module`` of logits, whose arrays are buffers.

        ``forward`` returns what calling this object returns. It can be moved to other devices, traced, compiled and
        exported; ``.half()`` and ``torch.autocast`` do not change its precision.
        """
        from calibrant.posthoc.modules import CalibratorModule

        self.require_fitted()
        return CalibratorModule(self)

    def options(self) -> dict[str, Any]:
        """Arguments that make the same object, unfitted."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def __repr__(self) -> str:
        """Show the options, and the number of classes once it is fitted."""
        values = self.options() | ({} if self.class_count_ is None else {"class_count_": self.class_count_})
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


class Calibrator(Fitted, ABC):
    r"""Base class of the post-hoc calibrators, to be used after a trained classifier.

    ``predict_proba`` returns calibrated probabilities, and calling the object returns calibrated logits, whose softmax
    these are: arrays, tensors or data frames, as they came. Predictions from tensors are differentiable and on their
    device. Fits run in NumPy, on the CPU.

    Probabilities are mixed with the uniform distribution, :math:`(1 - \epsilon) p + \epsilon / C` with
    :math:`\epsilon = 1 / (n + 1)`: n held-out samples cannot show that an event never happens.

    Args:
        strict: The method as published: no mixing, and an error where there is no optimum. By default the answer is
            bounded there, with a notice.
    """

    # Rows that a fit needs before its parameters mean much, below which there is a notice.
    least_rows = 50
    # Whether the fit can make a class without samples unlikely.
    moves_classes = True
    # Whether the fit itself reports useless predictions, and whether it compares itself with doing nothing.
    reports_order, reports_harm = False, False

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        self.strict = bool(strict)

    def fit(
        self,
        logits: Any,
        target: Any,
        *,
        sample_weight: Any = None,
        ignore_index: int | None = -100,
        classes: Sequence[Any] | None = None,
    ) -> Self:
        """Fit on predictions the model was not trained on, and return self.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
                Torch, NumPy or a data frame.
            target: Class indices, or names of classes, ``(N, ...)``: the shape of the logits without the classes.
            sample_weight: Non-negative weights, the shape of ``target``. A sample of weight 2 counts as two.
            ignore_index: Label of samples to ignore; None to ignore none.
            classes: Label of each column of the logits. By default the target holds the indices 0 to C - 1; if it holds
                names, the columns of a data frame with these names, else the sorted names. A single column with the
                name of a class is that class.
        """
        data, labels = checked_samples(logits, target, sample_weight, ignore_index, classes)
        self.labels_, self.notices_ = labels, []
        self.solve(data)
        self.examine(data)
        return self.warned()

    def solve(self, data: HeldOut) -> None:
        """Fit on checked data, without a check of the result."""
        self.map_ = self.fit_map(data)
        self.class_count_, self.samples_ = data.logits.shape[1], len(data.target)

    @abstractmethod
    def fit_map(self, data: HeldOut) -> Map:
        """Return the fitted map, mixed with the uniform distribution."""

    def mixed(self, of: Map, data: HeldOut) -> Map:
        """Mix with the uniform distribution as much as n samples ask for."""
        return of if self.strict else Mixed(1 / (max(1.0, data.count) + 1), of)

    def rows_needed(self, classes: int) -> int:  # noqa: ARG002 (some methods need rows for each class)
        """Rows below which the fit has a notice."""
        return self.least_rows

    def examine(self, data: HeldOut) -> None:
        """Add notices: few rows, absent classes, useless predictions, and a small fit that is worse than nothing."""
        super().examine(data)
        count, classes = data.logits.shape
        needed = self.rows_needed(classes)
        if count < needed:
            self.notice(
                f"{counted(count, 'sample')} of {classes} classes {'are' if count > 1 else 'is'} few for this method, "
                f"which needs about {needed}: use more data, or AutoCalibration, which falls back to fewer parameters"
            )
        absent = np.flatnonzero(np.bincount(data.target, minlength=classes) == 0).tolist()
        if absent and self.moves_classes:
            labels = range(classes) if self.labels_ is None else self.labels_
            named = ", ".join(str(labels[k]) for k in absent[:5])
            named += ", ..." if len(absent) > 5 else ""
            self.notice(
                f"{len(absent)} of {classes} classes {'has' if len(absent) == 1 else 'have'} no samples ({named}), and "
                "may become unlikely: use data with all classes, or TemperatureScaling"
            )
        if count < FEWEST:
            return
        if not self.reports_order:
            self._examine_order(data)
        is_small = count <= max(COMPARED, 4 * needed) and data.logits.size <= COMPARED_ELEMENTS
        if is_small and not self.reports_harm and (harm := self._harm(data)):
            self.notice(harm)

    def _examine_order(self, data: HeldOut) -> None:
        true = data.logits[data.of_target]
        if float((data.logits.mean(1) - true).sum(dtype=np.float64)) >= 0:
            shown = "" if self.labels_ is None else f" (columns were taken as {', '.join(map(str, self.labels_[:8]))})"
            self.notice(
                "the held-out predictions are no better than chance: check that logits and target are in the same "
                f"order, and columns in the order of the classes{shown}"
            )
        elif bool((true >= data.logits.max(1)).all()):
            self.notice(
                f"every held-out prediction is right, in all {len(true)} samples: fit on more data, or on data the "
                "model was not trained on"
            )

    def worse_than_nothing(
        self, logits: Any, target: Any, *, sample_weight: Any = None, ignore_index: int | None = -100
    ) -> str | None:
        """Compare the method with doing nothing in cross-validation; a sentence with numbers if it is worse, else None.

        The arguments are those of ``fit``. It is None for fewer than 10 samples too. The calibrator is not changed.
        """
        data, _ = checked_samples(logits, target, sample_weight, ignore_index, self.labels_)
        return None if len(data.target) < FEWEST else self._harm(data)

    def _harm(self, data: HeldOut) -> str | None:
        fresh = type(self)(**self.options())
        try:
            after, order = out_of_fold(fresh.fit_map, data, fold_of(data, 5), range(5))
        except ValueError:  # a strict method has no optimum without one of the folds
            return None
        data = data.take(order)
        before = evaluated(lambda xp, rows: xp.log_softmax(xp.wide(rows)), data.logits)
        with np.errstate(divide="ignore"):
            both = before, np.log(after)
        loss = [float(-(data.share @ np.maximum(p[data.of_target], FLOOR))) for p in both]
        right, falls = accuracies(*both, data)
        scores = [name for name, worse in (("log loss", loss[1] > loss[0]), ("accuracy", falls)) if worse]
        if not scores:
            return None
        return (
            f"in cross-validation on these {data.count:g} samples the {' and the '.join(scores)} "
            f"{'are' if len(scores) > 1 else 'is'} worse than doing nothing: log loss {loss[1]:.3f} against "
            f"{loss[0]:.3f}, accuracy {right[1]:.1%} against {right[0]:.1%}: leave the predictions as they are, or use "
            "more data"
        )

    def __call__(self, logits: Any) -> Any:
        """Return calibrated logits in the given shape and container; of two classes in one column, that of class 1."""
        rows = self.rows(logits)
        return self.in_container(logits, evaluated(self.map_.logits, rows), of_logits=True)

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, ``(N, C)`` with rows that sum to one; ``(N, 2)`` for binary logits.

        Args:
            logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. What comes out is what went in:
                a tensor, an array or a data frame. Lists give an array; an empty one gives ``(0, C)``.
        """
        rows = self.rows(logits)
        return self.in_container(logits, evaluated(self.map_.probabilities, rows))

    def predict(self, logits: Any) -> Any:
        """Return the most likely class of each sample, by its label in ``classes_``: a NumPy array."""
        found = frames.as_array(self.predict_proba(logits))
        return self.classes_[found.argmax(1)]

    def fold_into(self, linear: "nn.Linear") -> "nn.Module":
        """Return a new last layer that gives calibrated logits; raises ``TypeError`` if the map is not affine in them.

        A layer cannot mix with the uniform distribution: that is left out; see ``strict``. Of structured scaling, the
        temperature is folded into the layer, and the rest follows as a module.

        Args:
            linear: The classifier's last layer, with one output per class (or one, if binary). It is not changed. The
                new layer has its dtype: in float16 the outputs agree only to about 5e-4, relative to their size.
        """
        from calibrant.posthoc.modules import folded

        self.require_fitted()
        return folded(self, linear)


def checked_samples(
    logits: Any, target: Any, sample_weight: Any, ignore_index: int | None, classes: Sequence[Any] | None
) -> tuple[HeldOut, list[Any] | None]:
    """Samples that count, and the labels of their classes if these have any."""
    values = inputs.numbers("logits", logits)
    count = 2 if values.ndim < 2 or values.shape[1] == 1 else values.shape[1]
    names: list[Any] | None = None
    if classes is not None:
        names = frames.as_array(classes).tolist()
    elif inputs.has_names(target):
        names = inputs.class_names(target, logits, count)
    if names is not None:
        if len(set(names)) != count:
            raise ValueError(f"classes must have {count} different labels, one per class of the logits, got {names}")
        target = inputs.class_indices(target, names, ignore_index)
    rows, marks, weight, _ = inputs.rows_of("logits", values, target, sample_weight, None, ignore_index, False)
    if weight is not None:
        kept = weight > 0
        rows, marks, weight = rows[kept], marks[kept], weight[kept]
        weight = None if (weight == 1).all() else weight
    if len(rows) == 0:
        raise ValueError("a fit needs at least 1 sample, got none: pass held-out data")
    return HeldOut(inputs.logit_rows(inputs.finite_logits(rows)), marks, weight), names


def logits_from_probabilities(probabilities: Any) -> Any:
    """Logits whose softmax gives the probabilities, for models that only return probabilities.

    A 0, as forests return, becomes a finite logit of -87: probabilities are floored at 1.2e-38.

    Args:
        probabilities: ``(N, C)`` with rows that sum to one; or ``(N,)`` or ``(N, 1)``, the probability of class 1.
            Torch, NumPy or a data frame; what comes out is what went in.

    Returns:
        ``(N, C)`` log-probabilities, or the ``(N,)`` or ``(N, 1)`` logit of class 1; at least float32.

    Example:
        >>> np.exp(logits_from_probabilities(np.array([[0.2, 0.8], [0.5, 0.5]])))
        array([[0.2, 0.8],
               [0.5, 0.5]])
        >>> logits_from_probabilities(np.array([0.5, 1.0])).round(1)
        array([ 0. , 87.3])
    """
    checked = inputs.in_unit_interval("probabilities", inputs.numbers("probabilities", probabilities))
    if checked.ndim not in (1, 2):
        raise ValueError(f"probabilities must have shape (N, C), or (N,) or (N, 1) if binary, got {checked.shape}")
    binary = checked.ndim == 1 or checked.shape[1] == 1
    if binary:
        inputs.warn_if_mistaken("probabilities", checked.ravel())
    elif len(checked):
        inputs.distributions(checked)
    p: Any = checked
    xp = NumpyOps()
    if is_tensor(probabilities) and (probabilities.requires_grad or probabilities.device.type != "cpu"):
        from calibrant.numerics import at_least_float32

        p, xp = at_least_float32(probabilities), TorchOps()
    found = xp.log(xp.clip(p, TINY, None))
    if binary:
        found = found - xp.log(xp.clip(1 - p, TINY, None))
    if is_tensor(probabilities):
        return found if is_tensor(found) else sys.modules["torch"].from_numpy(found)
    return frames.like(probabilities, found, frames.columns(probabilities) or None)
