"""Base class of the calibrators: calibrated logits and probabilities, mixing, and a check against doing nothing."""

import copy
import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.numerics import accumulation_dtype, log_softmax
from calibrant.posthoc import containers
from calibrant.posthoc.containers import Array
from calibrant.posthoc.fitted import Fitted, full_precision, saved_settings
from calibrant.posthoc.folds import fold_numbers
from calibrant.posthoc.notices import counted
from calibrant.posthoc.probabilities import FLOOR

# Fits of few rows are cross-checked against doing nothing: up to this many, or four times those that a method needs, if
# the logits have no more than so many elements.
CROSS_CHECKED, CROSS_CHECKED_ELEMENTS = 200, 2**16
# Logits beyond this overflow in float32 when they are scaled.
HUGE = 1e30


def relative(logits: Tensor) -> Tensor:
    """Logits relative to the largest of their row, which a softmax does not see; finite for all finite logits."""
    return (logits - logits.amax(1, keepdim=True)).clamp_min(-HUGE)


class Calibrator(Fitted):
    r"""Base class of the post-hoc calibrators: a small module to put after a trained classifier.

    ``fit`` solves for the parameters of the method; ``predict_proba`` returns calibrated probabilities, and
    calling the module returns calibrated logits, if the method has them. Sums are accumulated in float64;
    parameters have the dtype and device of the logits. ``.to()`` moves them to other devices and wider dtypes;
    ``.half()`` and ``torch.autocast`` do not change them.

    Probabilities are mixed with the uniform distribution, :math:`(1 - \epsilon) p + \epsilon / C` with
    :math:`\epsilon = 1 / (n + 1)` for n held-out samples: n samples cannot show that an event never happens, and a
    probability of 0 would make the log loss infinite.

    Args:
        strict: The method as published: no mixing, and an error where there is no optimum. By default the answer is
            bounded there, with a notice.
    """

    strict: bool
    smoothing_: float
    # Rows that a fit needs before its parameters mean much, below which there is a notice.
    least_rows = 50

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        vars(self).update(strict=bool(strict), smoothing_=0.0)

    def solve(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Fit on checked data, without notices."""
        vars(self)["smoothing_"] = self.smoothing_for(rows, weight)
        super().solve(rows, target, weight)

    def smoothing_for(self, rows: Tensor, weight: Tensor | None) -> float:
        """Return the share of the uniform distribution that is mixed in after a fit on these rows."""
        count = rows.shape[0] if weight is None else max(1.0, float(weight.sum()))
        return 0.0 if self.strict else 1 / (count + 1)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "smoothing_": self.smoothing_}

    def set_extra_state(self, state: Tensor | dict[str, Any]) -> None:
        """Load the part of a state_dict that is not a buffer."""
        super().set_extra_state(state)
        self.smoothing_ = saved_settings(state).get("smoothing_", 0.0)

    def rows_needed(self, classes: int) -> int:  # noqa: ARG002 (some methods need rows for each class)
        """Rows below which the fit has a notice."""
        return self.least_rows

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Add notices: few rows, absent classes, and a cross-check of small fits against doing nothing."""
        super().examine(rows, target, weight)
        count, classes = rows.shape
        needed = self.rows_needed(classes)
        if count < needed:
            self.notice(
                f"{counted(count, 'sample')} of {classes} classes "
                f"{'are' if count > 1 else 'is'} few for this method, which needs about {needed}: "
                "use more data, or AutoCalibration, which falls back to fewer parameters"
            )
        self.absent_classes(target)
        self.check_order(rows, target)
        few = 10 <= count <= max(CROSS_CHECKED, 4 * needed) and count * classes <= CROSS_CHECKED_ELEMENTS
        if few and (worse := self._harm(rows, target, weight)):
            self.notice(worse)

    def absent_classes(self, target: Tensor) -> None:
        """Add a notice about classes without samples."""
        counts = np.bincount(target.cpu().numpy(), minlength=self.class_count_ or 0)
        if counts.min() == 0:
            absent = np.flatnonzero(counts == 0).tolist()
            named = ", ".join(str(k if self.labels_ is None else self.labels_[k]) for k in absent[:5])
            named += ", ..." if len(absent) > 5 else ""
            self.notice(
                f"{len(absent)} of {self.class_count_} classes {'has' if len(absent) == 1 else 'have'} no samples "
                f"({named}), and may become unlikely: use data with all classes, or TemperatureScaling"
            )

    def check_order(self, rows: Tensor, target: Tensor) -> None:
        """Add a notice about predictions that are no better than chance, or all right."""
        if any("no better than chance" in text or "prediction is right" in text for text in self.notices_):
            return
        true = rows.gather(1, target.unsqueeze(1)).squeeze(1)
        if float((rows.mean(1) - true).sum(dtype=torch.float64)) >= 0 and len(rows) >= 10:
            shown = "" if self.labels_ is None else f" (columns were taken as {', '.join(map(str, self.labels_[:8]))})"
            self.notice(
                "the held-out predictions are no better than chance: check that logits and target are in the same "
                f"order, and columns in the order of the classes{shown}"
            )
        elif len(rows) >= 10 and bool((true >= rows.amax(1)).all()):
            self.notice(
                f"every held-out prediction is right, in all {len(rows)} samples: fit on more data, or on data the "
                "model was not trained on"
            )

    def worse_than_nothing(
        self, logits: Any, target: Any, *, sample_weight: Any = None, ignore_index: int | None = -100
    ) -> str | None:
        """Compare the method with doing nothing in cross-validation; a sentence with numbers if it is worse, else None.

        Args:
            logits: Logits that the method was fitted on, as for ``fit``.
            target: Their classes.
            sample_weight: Their weights, as for ``fit``.
            ignore_index: Label of samples to ignore; None to ignore none.
        """
        with torch.no_grad():
            rows, labels, weight = self._checked(logits, target, sample_weight, ignore_index, self.labels_)
            return self._harm(rows, labels, weight)

    def _harm(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> str | None:
        after = self.cross_fitted(rows, target, weight)
        share = torch.ones(len(rows), dtype=torch.float64) if weight is None else weight.cpu()
        share = share / share.sum()
        column = target.unsqueeze(1)
        before = log_softmax(rows.double()).clamp_min(FLOOR)
        both = before, after.log().clamp_min(FLOOR)
        loss = [float(-(share * p.gather(1, column).squeeze(1).cpu()).sum()) for p in both]
        right = [float((share * (p.argmax(1) == target).cpu()).sum()) for p in both]
        # One sample is chance; half of another is for rounding.
        scores = [name for name, worse in (
            ("log loss", loss[1] > loss[0]), ("accuracy", right[1] < right[0] - 1.5 / len(rows)),
        ) if worse]  # fmt: skip
        if not scores:
            return None
        return (
            f"in cross-validation on these {len(rows)} samples the {' and the '.join(scores)} "
            f"{'are' if len(scores) > 1 else 'is'} worse than doing nothing: log loss {loss[1]:.3f} against "
            f"{loss[0]:.3f}, accuracy {right[1]:.1%} against {right[0]:.1%}: leave the predictions as they are, or use "
            "more data"
        )

    def cross_fitted(self, rows: Tensor, target: Tensor, weight: Tensor | None, folds: int = 5) -> Tensor:
        """Probabilities of each row by a fit without its fold, ``(N, C)``, float64 where the device has it.

        A fold whose fit fails keeps its own probabilities. The calibrator itself is not changed.

        Args:
            rows: Validated logits, ``(N, C)``.
            target: Class indices, ``(N,)``.
            weight: ``(N,)`` or None.
            folds: Number of folds; samples are assigned by their values, so that their order does not matter.
        """
        number = fold_numbers(rows, target, folds)
        result = rows.to(accumulation_dtype(rows)).softmax(1)
        fresh = copy.deepcopy(self)
        for fold in range(folds):
            kept, out = number != fold, number == fold
            if not (kept.any() and out.any()):
                continue
            try:
                fresh.solve(rows[kept], target[kept], None if weight is None else weight[kept])
            except ValueError:
                continue
            result[out] = fresh.mixed(rows[out]).to(result.dtype)
        return result

    @overload
    def __call__(self, logits: Tensor) -> Tensor: ...
    @overload
    def __call__(self, logits: Array) -> Array: ...
    def __call__(self, logits: Any) -> Any:
        """Call ``forward``, as every module does; defined only for its types."""
        return super().__call__(logits)

    def forward(self, logits: Any) -> Any:
        """Return calibrated logits in the given shape; raises ``TypeError`` if the method only has probabilities.

        Args:
            logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. What comes out is what went in:
                a tensor, a NumPy array or a data frame.
        """
        if isinstance(logits, Tensor):
            return self._logits(self.rows(logits), logits.shape)
        with torch.no_grad():
            return containers.like(logits, self._logits(self.rows(logits), np.shape(logits)), self.classes_)

    def _logits(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        with full_precision(rows):
            calibrated = self.mixed_logits(self.calibrated_logits(rows))
        if len(shape) > 1 and shape[1] > 1:
            return _unflattened(calibrated, shape)
        return (calibrated[:, 1] - calibrated[:, 0]).reshape(shape)

    @overload
    def predict_proba(self, logits: Tensor) -> Tensor: ...
    @overload
    def predict_proba(self, logits: Array | Sequence[Sequence[float]]) -> Array: ...
    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, ``(N, C)`` with rows that sum to one; ``(N, 2)`` for binary logits.

        Args:
            logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. What comes out is what went in:
                a tensor, a NumPy array or a data frame. Lists give an array; an empty one gives ``(0, C)``.
        """
        if isinstance(logits, Tensor):
            return self._probabilities(self.rows(logits), logits.shape)
        with torch.no_grad():
            return containers.like(logits, self._probabilities(self.rows(logits), np.shape(logits)), self.classes_)

    def _probabilities(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        with full_precision(rows):
            return _unflattened(self.mixed(rows), shape)

    def predict(self, logits: Any) -> Any:
        """Return the most likely class of each sample, by its label in ``classes_``: a NumPy array."""
        rows = self.predict_proba(logits)
        best = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows).argmax(1)
        return self.classes_[best]

    def mixed(self, rows: Tensor) -> Tensor:
        """Return calibrated probabilities of validated ``(N, C)`` logits, mixed with the uniform distribution."""
        calibrated = self.probabilities(rows)
        if self.smoothing_ == 0:
            return calibrated
        return calibrated * (1 - self.smoothing_) + self.smoothing_ / rows.shape[1]

    def mixed_logits(self, calibrated: Tensor) -> Tensor:
        """Return the logits of calibrated logits' probabilities, mixed with the uniform distribution."""
        if self.smoothing_ == 0:
            return calibrated
        kept = log_softmax(calibrated) + math.log1p(-self.smoothing_)
        return kept.logaddexp(kept.new_tensor(math.log(self.smoothing_ / calibrated.shape[1])))

    def fold_into(self, linear: nn.Linear) -> nn.Module:
        """Return a layer that gives calibrated logits; raises ``TypeError`` if the method has none."""
        raise TypeError(
            f"{type(self).__name__} cannot be folded into {type(linear).__name__}: use "
            "TemperatureScaling(strict=True), or put the calibrator behind the model"
        )

    def calibrated_logits(self, logits: Tensor) -> Tensor:  # noqa: ARG002 (methods that have them use it)
        """Return calibrated logits of validated ``(N, C)`` logits, before mixing."""
        raise TypeError(
            f"{type(self).__name__} has no calibrated logits, only probabilities: call predict_proba(logits)"
        )

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return calibrated probabilities of validated ``(N, C)`` logits, before mixing."""
        return self.calibrated_logits(logits).softmax(dim=1)


def _unflattened(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows of classes in the shape of dense logits."""
    if len(shape) < 3:
        return rows
    return rows.reshape(shape[0], *shape[2:], rows.shape[1]).movedim(-1, 1)
