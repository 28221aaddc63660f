"""The objectives of ``(confidence, correct)`` as pure functions: the numerical core, as in the papers."""

from calibrant.losses.ece import dca, ece, soft_binned_ece
from calibrant.losses.esd import esd
from calibrant.losses.mmce import mmce, mmce_weighted

__all__ = ["dca", "ece", "esd", "mmce", "mmce_weighted", "soft_binned_ece"]


def __dir__() -> list[str]:
    return __all__
