"""Multi-label calibration: one binary calibrator for every label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from calibrant import frames, inputs
from calibrant.posthoc.fit import Calibrator, Fitted, checked_samples
from calibrant.posthoc.map import Map, Part, evaluated
from calibrant.posthoc.registry import METHODS


@dataclass(frozen=True, eq=False)
class Labels(Part):
    """A binary map for each column of logits."""

    maps: tuple[Map, ...]

    def probabilities(self, xp: Any, rows: Any) -> Any:
        """Probability of every label, ``(N, L)``."""
        columns = []
        for k, part in enumerate(self.maps):
            one = rows[:, k : k + 1]
            columns.append(part.probabilities(xp, xp.concat((one * 0, one), 1))[:, 1:])
        return xp.concat(columns, 1)


class MultiLabelCalibration(Fitted):
    r"""Calibrate independent sigmoids, each label by a binary calibrator of its own.

    .. math:: \hat p_k = c_k(\sigma(l_k))

    Args:
        method: Name of the method in ``calibrant.posthoc.registry``, which is fitted once for each label.

    Attributes:
        calibrators: The fitted calibrators, one per label.

    Example:
        >>> import numpy as np
        >>> draw = np.random.default_rng(0)
        >>> logits = draw.normal(size=(1000, 3))
        >>> target = draw.random((1000, 3)) < 1 / (1 + np.exp(-logits))
        >>> calibrated = MultiLabelCalibration("platt").fit(4 * logits, target)  # four times too confident
        >>> calibrated.predict_proba(np.array([[4.0, 0.0, -4.0]])).round(1)
        array([[0.7, 0.5, 0.3]])
    """

    one_column_is_binary = False
    calibrators: list[Calibrator]

    def __init__(self, method: str = "auto") -> None:
        super().__init__()
        inputs.check_choice("method", method, tuple(METHODS))
        self.method = method
        self.calibrators = []

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

        Logits and target, which is 0 or 1, are both ``(N, L)`` or dense ``(N, L, d1, ...)``, and weights the same
        without L. ``classes`` are names of the labels, by default the columns of a data frame.
        """
        values, marks = inputs.numbers("logits", logits), inputs.as_array("target", target)
        if values.ndim < 2 or marks.shape != values.shape:
            raise ValueError(
                "multi-label logits and target must both have shape (N, L) or (N, L, d1, ...), got "
                f"{values.shape} and {marks.shape}: for one class per sample, use the calibrator itself"
            )
        weight = None if sample_weight is None else inputs.as_array("sample_weight", sample_weight).ravel()
        names = (frames.columns(logits) or None) if classes is None else frames.as_array(classes).tolist()
        self.notices_, self.calibrators = [], []
        for k, name in enumerate(range(values.shape[1]) if names is None else names):
            one = METHODS[self.method]()
            try:
                data, _ = checked_samples(values[:, k].ravel(), marks[:, k].ravel(), weight, ignore_index, None)
                one.solve(data)
                one.examine(data)
            except ValueError as error:
                raise ValueError(f"label {name}: {error}") from error
            self.calibrators.append(one)
            self.notices_ += [f"label {name}: {notice}" for notice in one.notices_]
        self.map_ = Labels(tuple(one.map_ for one in self.calibrators))
        self.class_count_, self.labels_, self.samples_ = values.shape[1], names, len(values)
        return self.warned()

    def __call__(self, logits: Any) -> Any:
        return self.predict_proba(logits)

    def predict_proba(self, logits: Any) -> Any:
        """Return the calibrated probability of every label, in the shape and the container of the logits."""
        rows = self.rows(logits)
        return self.in_container(logits, evaluated(self.map_.probabilities, rows))
