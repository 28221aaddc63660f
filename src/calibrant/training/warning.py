"""Warnings about calibrated training, which point at the line of the user's program that they are about."""

import sys
import warnings

PASSED_OVER = ("calibrant", "torch")


class CalibrationWarning(UserWarning):
    """Calibrated training does something other than what it is for."""


class Reminder:
    """Reminds the user of ``finish()`` when a loss with a temperature is gone without it.

    Args:
        on: Whether to remind.

    Attributes:
        temperature: What the logits of the model are still to be divided by.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self.temperature = 1.0

    def tell(self) -> None:
        """Give the reminder, if there is a reason for it."""
        if self.on and self.temperature != 1:
            warn(
                f"training ended without finish(): the model's logits are not divided by the temperature, "
                f"{self.temperature:.3g}, and are that much too sure. Call finish(held_out_loader) on the loss"
            )


def warn(message: str) -> None:
    """Give a :class:`CalibrationWarning`, located where the user's program calls this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CalibrationWarning, stacklevel=level)
