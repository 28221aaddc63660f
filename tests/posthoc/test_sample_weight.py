"""Weights of samples: every method counts a weight of 2 as two samples, and one of 0 as none."""

from collections.abc import Callable

import pytest
import torch

from calibrant.posthoc import BayesianBinning, Calibrator, HistogramBinning, SplineCalibration, VennAbers
from tests.posthoc.data import CALIBRATORS, overconfident

pytestmark = pytest.mark.filterwarnings("ignore::calibrant.posthoc.FitWarning")
# Its members are weighted by cross-validation: a weighted sample is in one fold, and copies of a sample in several,
# where they are predicted by each other.
REPEATED = [name for name in CALIBRATORS if name != "auto"]
# The sum of the weights counts as the number of samples in priors, soft labels and mixing: with a thousand times the
# data these fade. Bayesian binning takes as many bins as it has samples then, and fits every one.
DEPENDS_ON_THE_SUM = 0.02


def data(classes: int, samples: int = 400) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    logits, target = overconfident(samples, classes, 2.0, seed=0)
    weight = torch.randint(1, 4, (samples,), generator=torch.Generator().manual_seed(1))
    new, _ = overconfident(300, classes, 2.0, seed=2)
    return logits, target, weight, new


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("classes", "samples"), [(2, 5), (4, 60), (2, 400), (3, 400)])
@pytest.mark.parametrize("name", REPEATED)
def test_whole_weights_are_repeated_samples(name: str, classes: int, samples: int, tied: bool) -> None:
    logits, target, weight, new = data(classes, samples)
    logits = logits.round() if tied else logits
    repeated = CALIBRATORS[name]().fit(logits.repeat_interleave(weight, 0), target.repeat_interleave(weight))
    weighted = CALIBRATORS[name]().fit(logits, target, sample_weight=weight.double())
    torch.testing.assert_close(weighted.predict_proba(new), repeated.predict_proba(new), rtol=0, atol=1e-6)
    plain = CALIBRATORS[name]().fit(logits, target)
    assert (plain.predict_proba(new) - repeated.predict_proba(new)).abs().max() > 1e-3


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_weight_of_zero_leaves_a_sample_out(name: str) -> None:
    logits, target, _, new = data(4)
    weight = torch.ones(400, dtype=torch.float64)
    weight[::3] = 0
    wrong = torch.where(weight == 0, (target + 1) % 4, target)
    fitted = CALIBRATORS[name]().fit(logits, wrong, sample_weight=weight)
    kept = CALIBRATORS[name]().fit(logits[weight > 0], target[weight > 0])
    torch.testing.assert_close(fitted.predict_proba(new), kept.predict_proba(new), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_equal_weights_of_one_change_nothing(name: str) -> None:
    logits, target, _, new = data(4)
    plain = CALIBRATORS[name]().fit(logits, target)
    weighted = CALIBRATORS[name]().fit(logits, target, sample_weight=torch.ones(400))
    assert torch.equal(weighted.predict_proba(new), plain.predict_proba(new))
    # Nearly the same, but by the code for weights.
    weight = torch.ones(400, dtype=torch.float64)
    weight[0] += 1e-9
    nearly = CALIBRATORS[name]().fit(logits, target, sample_weight=weight)
    torch.testing.assert_close(nearly.predict_proba(new), plain.predict_proba(new), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if "bbq" not in name])
def test_larger_weights_of_the_same_proportions_are_more_data(name: str) -> None:
    logits, target, weight, new = data(4)
    once, often = (
        CALIBRATORS[name]().fit(logits, target, sample_weight=factor * weight.double()) for factor in (1, 1000)
    )
    assert (often.predict_proba(new) - once.predict_proba(new)).abs().mean() < DEPENDS_ON_THE_SUM


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_the_order_of_weighted_samples_does_not_matter(name: str, tied: bool) -> None:
    logits, target, weight, new = data(4)
    logits = logits.round() if tied else logits
    order = torch.randperm(400, generator=torch.Generator().manual_seed(3))
    one, other = (
        CALIBRATORS[name]().fit(logits[i], target[i], sample_weight=weight[i].double()).predict_proba(new)
        for i in (torch.arange(400), order)
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def extreme(samples: int) -> dict[str, torch.Tensor]:
    one, draw = torch.ones(samples, dtype=torch.float64), torch.Generator().manual_seed(4)
    return {
        "one of 1e30": one.index_fill(0, torch.tensor([1]), 1e30),
        "one of 1e-30": one.index_fill(0, torch.tensor([1]), 1e-30),
        "all of 1e30": 1e30 * one,
        "forty decades": 10 ** (40 * torch.rand(samples, generator=draw, dtype=torch.float64) - 20),
    }


@pytest.mark.parametrize("samples", [5, 60])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("view", ["class-wise", "top-label"])
@pytest.mark.parametrize("method", [SplineCalibration, BayesianBinning, HistogramBinning, VennAbers])
def test_extreme_weights_give_probabilities(
    method: Callable[..., Calibrator], view: str, classes: int, samples: int
) -> None:
    logits, target = overconfident(samples, classes, 2.0, seed=0)
    strict = {} if method is VennAbers else {"strict": True}
    for name, weight in extreme(samples).items():
        found = method(view=view, **strict).fit(logits, target, sample_weight=weight).predict_proba(logits)
        assert found.isfinite().all(), name
        assert found.min() >= 0, name
        assert found.max() <= 1 + 1e-6, name


def test_a_bin_with_little_weight_has_its_own_rate() -> None:
    weight = torch.tensor([0.2, 0.2, 0.1])
    binning = HistogramBinning(2, "equal-width", strict=True)
    binning.fit(torch.tensor([3.0, 3.0, 3.0]), torch.tensor([1, 1, 0]), sample_weight=weight)
    assert binning.predict_proba(torch.tensor([3.0]))[0, 1].item() == pytest.approx(0.8)
