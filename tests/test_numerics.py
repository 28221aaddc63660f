"""The numerical methods, each against plain arithmetic."""

import pytest
import torch

from calibrant import numerics


def test_root_of_almost_nothing_is_zero() -> None:
    x = torch.tensor([1e-300, 1e-17, 1e-15], dtype=torch.float64, requires_grad=True)
    root = numerics.safe_root(x)
    root.sum().backward()
    assert root.tolist() == [0.0, 0.0, pytest.approx(1e-15**0.5)]
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, pytest.approx(0.5 / 1e-15**0.5)]


def test_division_by_almost_nothing_is_zero() -> None:
    x = torch.tensor([0.0, 5e-324, 1e-160, 0.5], dtype=torch.float64, requires_grad=True)
    ratio = numerics.safe_divide(torch.ones(4, dtype=torch.float64), x)
    ratio.sum().backward()
    assert ratio.tolist() == [0, 0, 0, 2]
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0, -4]


def test_log_softmax_stays_finite_when_the_span_overflows() -> None:
    big = torch.finfo(torch.float32).max
    x = torch.tensor([big, -big], requires_grad=True)
    y = numerics.log_softmax(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
