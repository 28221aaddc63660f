"""What scalings with a curve of the log-odds of a binary model share."""

from abc import abstractmethod

import torch
from torch import Tensor

from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.structured import StructuredMatrixScaling

# Inverse variance of the prior of slope and shift: that of structured matrix scaling for two classes.
PRECISION = 4.0


class BinaryCurve(StructuredMatrixScaling):
    """A line and a curve of the temperature-scaled log-odds; for more than two classes, structured matrix scaling."""

    @abstractmethod
    def fit_curve(self, odds: Tensor, hits: Tensor, weight: Tensor | None, dtype: torch.dtype) -> tuple[float, float]:
        """Fit line and curve, keep the curve, and return slope and shift of the line.

        Args:
            odds: ``(N,)`` log-odds, float64.
            hits: ``(N,)`` zeros and ones, float64.
            weight: ``(N,)`` or None.
            dtype: Type in which to keep the curve.
        """

    @abstractmethod
    def curve(self, odds: Tensor) -> Tensor:
        """Return what is added to the line. Only called for two classes."""

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Solve for the temperature, then for line and curve."""
        if logits.shape[1] > 2:
            super().fit_rows(logits, target, weight)
            return
        self.fit_temperature(logits, target, weight)
        odds = self._features(logits.double()).diff(dim=1).squeeze(1)
        slope, shift = self.fit_curve(odds, target.double(), weight, logits.dtype)
        # As a correction of two log-probabilities, of which only the difference counts: class 0 has a logit of 0.
        self.matrix = logits.new_tensor([[-1.0, 0.0], [-slope, slope - 1]])
        self.shift = logits.new_tensor([0.0, shift])

    def _line(self) -> tuple[float, float]:
        """Slope and shift of the line, after a fit of two classes."""
        return 1 + float(self.matrix[1, 1]), float(self.shift[1])

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Evaluate line and curve; for more than two classes, correct the scaled log-probabilities."""
        line = super().calibrated_logits(logits)
        if logits.shape[1] > 2:
            return line
        curve = self.curve(self._features(logits).diff(dim=1))
        return line + torch.cat((torch.zeros_like(curve), curve), dim=1)

    def mixed(self, rows: Tensor) -> Tensor:
        """Return calibrated probabilities, of two classes mixed with the uniform distribution."""
        return Calibrator.mixed(self, rows) if rows.shape[1] == 2 else super().mixed(rows)

    def mixed_logits(self, calibrated: Tensor) -> Tensor:
        """Return the logits of these probabilities."""
        return (
            Calibrator.mixed_logits(self, calibrated) if calibrated.shape[1] == 2 else super().mixed_logits(calibrated)
        )
