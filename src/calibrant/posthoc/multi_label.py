"""Multi-label calibration: one binary calibrator for every label."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import inputs
from calibrant.numerics import at_least_float32
from calibrant.posthoc import containers
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature import TemperatureScaling


class MultiLabelCalibration(nn.Module):
    r"""Calibrate independent sigmoids, each label by a binary calibrator of its own.

    .. math:: \hat p_k = c_k(\sigma(l_k))

    Args:
        method: The calibrator to fit for each label: a class such as :class:`BetaCalibration`, or a function that makes
            an unfitted calibrator.

    Attributes:
        calibrators: The fitted calibrators, one per label.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import MultiLabelCalibration, PlattScaling
        >>> draw = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(1000, 3, generator=draw)
        >>> target = (torch.rand(1000, 3, generator=draw) < logits.sigmoid()).long()
        >>> calibrated = MultiLabelCalibration(PlattScaling).fit(4 * logits, target)  # four times too confident
        >>> calibrated.predict_proba(torch.tensor([[4.0, 0.0, -4.0]])).round(decimals=1)
        tensor([[0.7000, 0.5000, 0.3000]])
    """

    def __init__(self, method: Any = TemperatureScaling) -> None:
        super().__init__()
        if not isinstance(method(), Calibrator):
            raise TypeError(f"method must make a calibrator, such as BetaCalibration, got {method!r}")
        self.method = method
        self.labels_: list[Any] | None = None
        self.calibrators = nn.ModuleList()

    def fit(
        self, logits: Any, target: Any, *, sample_weight: Any = None, ignore_index: int | None = -100,
        classes: Sequence[Any] | None = None,
    ) -> Self:  # fmt: skip
        """Fit on predictions the model was not trained on, and return self.

        Args:
            logits: ``(N, L)``, the logit of every label. Torch, NumPy or a data frame.
            target: ``(N, L)``, 1 where a label applies and 0 where not.
            sample_weight: Non-negative weights, ``(N,)``. A sample of weight 2 counts as two.
            ignore_index: Entry of the target to ignore; None to ignore none.
            classes: Names of the labels; by default the columns of a data frame.
        """
        values, labels = containers.as_tensor(logits), containers.as_tensor(target, "target")
        inputs.check_float("logits", values)
        if values.dim() != 2 or labels.shape != values.shape:
            raise ValueError(
                f"multi-label logits and target must both have shape (N, L), got {tuple(values.shape)} and "
                f"{tuple(labels.shape)}: for one class per sample, use the calibrator itself"
            )
        names = getattr(logits, "columns", None) if classes is None else classes
        self.labels_ = None if names is None else list(names)
        fitted = [self.method() for _ in range(values.shape[1])]
        for k, calibrator in enumerate(fitted):
            calibrator.fit(values[:, k], labels[:, k].long(), sample_weight=sample_weight, ignore_index=ignore_index)
        self.calibrators = nn.ModuleList(fitted)
        return self

    def forward(self, logits: Any) -> Any:
        """Return the calibrated probability of every label, as ``predict_proba`` does."""
        return self.predict_proba(logits)

    def predict_proba(self, logits: Any) -> Any:
        """Return the calibrated probability of every label, ``(N, L)``; what comes out is what went in.

        Args:
            logits: ``(N, L)``. Torch, NumPy or a data frame.
        """
        if not len(self.calibrators):
            raise RuntimeError("MultiLabelCalibration is not fitted: call fit(logits, target) on held-out data")
        shape = tuple(np.shape(logits))
        if len(shape) != 2 or shape[1] != len(self.calibrators):
            raise ValueError(f"it was fitted on {len(self.calibrators)} labels, got logits of shape {shape}")
        if isinstance(logits, Tensor):
            return self._columns(at_least_float32(logits))
        with torch.no_grad():
            values = at_least_float32(containers.as_tensor(logits))
            return containers.like(logits, self._columns(values), self.labels_)

    def _columns(self, values: Tensor) -> Tensor:
        columns = [calibrator.predict_proba(values[:, k])[:, 1] for k, calibrator in enumerate(self.calibrators)]  # type: ignore[operator]
        return torch.stack(columns, dim=1)
