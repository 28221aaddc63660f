"""Multi-label calibration: one binary calibrator for every label."""

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import frames
from calibrant.losses import checks
from calibrant.numerics import at_least_float32
from calibrant.posthoc import containers
from calibrant.posthoc.fitted import Fitted, saved_settings
from calibrant.posthoc.methods import METHODS
from calibrant.posthoc.notices import FitWarning, counted


class MultiLabelCalibration(Fitted):
    r"""Calibrate independent sigmoids, each label by a binary calibrator of its own.

    .. math:: \hat p_k = c_k(\sigma(l_k))

    Args:
        method: Name of the method in ``posthoc.METHODS``, which is fitted once for each label.

    Attributes:
        calibrators: The fitted calibrators, one per label.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import MultiLabelCalibration
        >>> draw = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(1000, 3, generator=draw)
        >>> target = (torch.rand(1000, 3, generator=draw) < logits.sigmoid()).long()
        >>> calibrated = MultiLabelCalibration("platt").fit(4 * logits, target)  # four times too confident
        >>> calibrated.predict_proba(torch.tensor([[4.0, 0.0, -4.0]])).round(decimals=1)
        tensor([[0.7000, 0.5000, 0.3000]])
    """

    decisive = ("method",)
    calibrators: nn.ModuleList

    def __init__(self, method: str = "auto") -> None:
        super().__init__()
        checks.check_choice("method", method, tuple(METHODS))
        self.method = method
        self.calibrators = nn.ModuleList()

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
            logits: ``(N, L)`` or dense ``(N, L, d1, ...)``, the logit of every label. Torch, NumPy or a data frame.
            target: 1 where a label applies and 0 where not, the shape of the logits.
            sample_weight: Non-negative weights, ``(N,)`` or dense ``(N, d1, ...)``. A sample of weight 2 counts as two.
            ignore_index: Entry of the target to ignore; None to ignore none.
            classes: Names of the labels; by default the columns of a data frame.
        """
        values, labels = containers.as_tensor(logits), containers.as_tensor(target, "target")
        checks.check_float("logits", values)
        if values.dim() < 2 or labels.shape != values.shape:
            raise ValueError(
                "multi-label logits and target must both have shape (N, L) or (N, L, d1, ...), got "
                f"{tuple(values.shape)} and {tuple(labels.shape)}: for one class per sample, use the calibrator itself"
            )
        weight = None if sample_weight is None else containers.as_tensor(sample_weight, "sample_weight").flatten()
        names = (frames.columns(logits) or None) if classes is None else classes
        fitted = [METHODS[self.method]() for _ in range(values.shape[1])]
        called = range(len(fitted)) if names is None else np.asarray(names).tolist()
        found: list[str] = []
        for k, (name, calibrator) in enumerate(zip(called, fitted, strict=True)):
            each, marks = values[:, k].flatten(), labels[:, k].flatten().long()
            try:
                with warnings.catch_warnings():  # they are repeated below, with the name of the label
                    warnings.simplefilter("ignore", FitWarning)
                    calibrator.fit(each, marks, sample_weight=weight, ignore_index=ignore_index)
            except ValueError as error:
                raise ValueError(f"label {name}: {error}") from error
            found += [f"label {name}: {notice}" for notice in calibrator.notices_]
        self.calibrators = nn.ModuleList(fitted)
        self.class_count_, self.notices_ = len(fitted), found
        self.labels_ = None if names is None else list(called)
        for notice in found:
            warnings.warn(f"MultiLabelCalibration: {notice}", FitWarning, stacklevel=2)
        return self

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:  # noqa: ARG002
        """Not used: ``fit`` fits the calibrator of each label."""
        raise TypeError("labels are fitted one by one: call fit(logits, target)")

    def forward(self, logits: Any) -> Any:
        """Return the calibrated probability of every label, as ``predict_proba`` does."""
        return self.predict_proba(logits)

    def predict_proba(self, logits: Any) -> Any:
        """Return the calibrated probability of every label, in the shape of the logits; what comes out is what went in.

        Args:
            logits: ``(N, L)`` or dense ``(N, L, d1, ...)``. Torch, NumPy or a data frame.
        """
        self.require_fitted()
        if not isinstance(logits, Tensor):
            with torch.no_grad():
                return containers.like(logits, self.predict_proba(self.as_given(logits)), self.classes_)
        shape = tuple(logits.shape)
        if len(shape) < 2 or shape[1] != self.class_count_:
            raise ValueError(
                f"it was fitted on {counted(self.class_count_ or 0, 'label')}, got logits of shape {shape}: use the "
                "model it was fitted for, or fit again"
            )
        return self._columns(at_least_float32(logits))

    def _columns(self, values: Tensor) -> Tensor:
        columns = [
            each.predict_proba(values[:, k].flatten())[:, 1].reshape(values[:, k].shape)  # type: ignore[operator]
            for k, each in enumerate(self.calibrators)
        ]
        return torch.stack(columns, dim=1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make the calibrators first, so that their states find them."""
        state = state_dict.get(prefix + "_extra_state")
        if state is not None and self._refusal(saved_settings(state)) is None:
            count = saved_settings(state)["classes"]
            self.calibrators = nn.ModuleList([METHODS[self.method]() for _ in range(count)])
        super()._load_from_state_dict(state_dict, prefix, *rest)
