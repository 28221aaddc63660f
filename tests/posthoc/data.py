"""Data of known miscalibration, and what is measured on it."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.posthoc import (
    BayesianBinning,
    BetaCalibration,
    Calibrator,
    CentredIsotonicCalibration,
    DirichletCalibration,
    FitWarning,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    PriorShift,
    SplineCalibration,
    VennAbers,
)
from calibrant.posthoc.fit import Fitted
from calibrant.posthoc.map import Part
from calibrant.posthoc.registry import METHODS

Kind = TypeVar("Kind", bound=Part)
CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    **METHODS,
    "matrix": lambda: MatrixScaling(0.1, 0.1),
    "dirichlet": lambda: DirichletCalibration(0.1, 0.1),
    "platt top-label": lambda: PlattScaling("top-label"),
    "beta top-label": lambda: BetaCalibration("top-label"),
    "spline class-wise": lambda: SplineCalibration(view="class-wise"),
    "histogram class-wise": lambda: HistogramBinning(view="class-wise"),
    "histogram equal-width": lambda: HistogramBinning(mode="equal-width"),
    "isotonic top-label": lambda: IsotonicCalibration("top-label"),
    "centred-isotonic top-label": lambda: CentredIsotonicCalibration("top-label"),
    "venn-abers top-label": lambda: VennAbers("top-label"),
    "bbq top-label": lambda: BayesianBinning("top-label"),
    "prior-shift": lambda: PriorShift(method="temperature"),
}


def overconfident(
    samples: int, classes: int, temperature: float, seed: int, *, spread: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Logits in float64 whose best temperature is close to the one given."""
    generator = torch.Generator().manual_seed(seed)
    honest = torch.randn(samples, classes, generator=generator, dtype=torch.float64) * spread
    target = torch.multinomial(honest.softmax(1), 1, generator=generator).squeeze(1)
    return honest * temperature, target


def nll(probabilities: Tensor, target: Tensor) -> float:
    """Mean negative log-likelihood."""
    return float(-probabilities.double().gather(1, target.unsqueeze(1)).log().mean())


def ece(probabilities: npt.NDArray[np.floating], target: npt.NDArray[np.integer]) -> float:
    """Expected calibration error in 15 right-closed bins of equal width, in plain NumPy."""
    confidence, right = probabilities.max(1).astype(np.float64), probabilities.argmax(1) == target
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        total += abs(float((right[inside] - confidence[inside]).sum()))
    return total / len(confidence)


def notices(calibrator: Any, *data: Any, **options: Any) -> list[str]:
    """Texts of the warnings of a fit, which point at its caller."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator.fit(*data, **options)
    assert all(each.category is FitWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def part_of(calibrator: Fitted, kind: type[Kind]) -> Kind:
    """The outermost part of a fitted map that is of a kind."""
    return next(part for part in calibrator.map_.parts() if isinstance(part, kind))


FIT, TARGET = overconfident(2000, 4, 2.5, seed=0)
TEST, TEST_TARGET = overconfident(2000, 4, 2.5, seed=1)
