"""The tricks, each against long doubles or plain arithmetic."""

import numpy as np
import pytest
import torch

from calibrant import numerics


@pytest.mark.parametrize("bandwidth", [1e-5, 1e-4, 0.002, 0.01, 0.4, 10.0])
def test_laplace_form_against_a_long_double_recurrence(bandwidth: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20_000, generator=generator, dtype=torch.float64)
    x[:5_000] = (x[:5_000] * 100).round() / 100
    w = torch.randn(20_000, generator=generator, dtype=torch.float64)
    order = x.argsort()
    position, weight = x[order].numpy().astype(np.longdouble), w[order].numpy().astype(np.longdouble)
    running, total = np.longdouble(0), np.longdouble(0)
    for i in range(len(position)):
        if i:
            running *= np.exp(-(position[i] - position[i - 1]) / np.longdouble(bandwidth))
        total += weight[i] * (2 * running + weight[i])
        running += weight[i]
    ours = numerics.laplace_quadratic_form(x, w, bandwidth).item()
    assert ours == pytest.approx(float(total), rel=1e-10)


def test_narrow_kernels_do_not_overflow() -> None:
    x = torch.tensor([0.0, 0.0, 0.3, 1.0, 1.0] * 100, dtype=torch.float64, requires_grad=True)
    w = torch.ones(500, dtype=torch.float64)
    value = numerics.laplace_quadratic_form(x, w, 1e-30)
    value.backward()
    assert value.item() == 200**2 + 100**2 + 200**2
    assert x.grad is not None
    assert (x.grad == 0).all()


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


def test_entropy_of_certainty_has_a_finite_gradient() -> None:
    p = torch.tensor([1.0, 0.0], requires_grad=True)
    h = numerics.entropy(p)
    h.backward()
    assert h == 0
    assert p.grad is not None
    assert p.grad.isfinite().all()


def test_log_softmax_stays_finite_when_the_span_overflows() -> None:
    big = torch.finfo(torch.float32).max
    x = torch.tensor([big, -big], requires_grad=True)
    y = numerics.log_softmax(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_the_sum_over_pairs_is_the_quadratic_form_without_its_diagonal() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, generator=generator, dtype=torch.float64)
    x[:50] = (x[:50] * 8).round() / 8
    w = torch.randn(200, generator=generator, dtype=torch.float64)
    for bandwidth in (1e-5, 0.01, 0.4):
        expected = numerics.laplace_quadratic_form(x, w, bandwidth) - w.square().sum()
        torch.testing.assert_close(numerics.laplace_sum_over_pairs(x, w, bandwidth), expected)


def test_no_digit_is_lost_beside_one_large_weight() -> None:
    w = torch.tensor([1.0, 1e-20, 3e-20, 2e-20], dtype=torch.float64)
    x = torch.tensor([0.5, 0.5, 0.5, 0.9], dtype=torch.float64)
    assert numerics.sum_over_distinct(w, 2).item() == pytest.approx(2 * 6e-20, rel=1e-15)
    assert numerics.sum_over_distinct(w, 3).item() == pytest.approx(6 * 11e-40, rel=1e-15)
    expected = 2 * (4e-20 + 2e-20 * np.exp(-1.0))
    assert numerics.laplace_sum_over_pairs(x, w, 0.4).item() == pytest.approx(expected, rel=1e-15)


def test_relative_weights_have_a_largest_of_one() -> None:
    w = torch.tensor([[1e300, 5e299], [1e-300, 0.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(numerics.relative_weight(w), torch.tensor([[1, 0.5], [1, 0], [0, 0]]).double())
