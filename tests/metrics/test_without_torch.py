"""Metrics work where torch is not installed, and take tensors where it is."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import calibrant
from calibrant import metrics

PROGRAM = """
import sys
from typing import Any
sys.modules["torch"] = None  # as if it were not installed
import calibrant
from calibrant import metrics
given = dict(logits=[[2.0, 0.0], [0.0, 1.0], [1.0, 0.5], [0.2, 3.0]] * 20, target=[0, 1, 1, 1] * 20)
print(round(metrics.evaluate(**given).ece, 6), metrics.calibration_test(**given, draws=50).p_value)
try:
    calibrant.ESDLoss
except ImportError as error:
    print(error)
"""


def test_metrics_need_no_torch_and_an_objective_names_the_extra() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    given: dict[str, Any] = {
        "logits": np.tile([[2.0, 0.0], [0.0, 1.0], [1.0, 0.5], [0.2, 3.0]], (20, 1)),
        "target": [0, 1, 1, 1] * 20,
    }
    lines = ended.stdout.splitlines()
    assert lines[0] == f"{metrics.evaluate(**given).ece:.6f} {metrics.calibration_test(**given, draws=50).p_value}"
    assert "calibrant[torch]" in lines[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_every_precision_are_taken(dtype: torch.dtype) -> None:
    confidence = torch.tensor([0.5, 0.75, 1.0], dtype=dtype, requires_grad=True)
    found = metrics.predictions(confidence, torch.tensor([0, 1, 1]))
    assert found.confidence.tolist() == [0.5, 0.75, 1.0]
    assert found.confidence.dtype == (np.float64 if dtype == torch.float64 else np.float32)


def test_the_package_lists_its_api_and_nothing_else() -> None:
    assert set(dir(calibrant)) == {*calibrant.__all__, "__version__"}
