import numpy as np
import pytest
from scipy.stats import binomtest

from calibrant.metrics.intervals import wilson_interval


@pytest.mark.parametrize(("right", "samples"), [(0, 1), (1, 1), (3, 10), (10, 10), (812, 1000)])
def test_the_box_is_the_wilson_interval(right: int, samples: int) -> None:
    low, high = wilson_interval(np.array([float(right)]), np.array([float(samples)]))
    expected = binomtest(right, samples).proportion_ci(method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-6)
