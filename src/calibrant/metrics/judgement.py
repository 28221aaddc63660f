"""Tests of everything that a model states: each view by consistency resampling, several with Holm's correction."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrant.frames import Array
from calibrant.metrics import notebook, resampling
from calibrant.metrics.analytic import kuiper_test
from calibrant.metrics.draws import ROUNDING
from calibrant.metrics.inference import calibration_test
from calibrant.metrics.predictions import Predictions, predictions
from calibrant.metrics.resampling import Progress
from calibrant.metrics.rows import RowStatistic
from calibrant.metrics.table import METRICS
from calibrant.metrics.verdicts import CalibrationTest
from calibrant.metrics.views import View, views

# Draws per view of a family: with fewer than 20, no view could be rejected after the correction.
DRAWS_EACH = 40
# A view of a family with so many draws as bad as the data needs no more of them.
ENOUGH = 20
# Beyond doubt: Kuiper's p-value, with enough expected events that its law holds roughly so far out.
BEYOND_DOUBT, EVENTS = 1e-9, 10.0
FEWEST_DRAWS = 100


@notebook.shown
@dataclass(frozen=True, eq=False)
class Judgement:
    """Test of one view.

    Attributes:
        view: What was tested.
        test: Test of the hypothesis that its probabilities are calibrated, with ESD.
        p_value: Its p-value, corrected for the number of classes or labels that were tested.
    """

    view: View
    test: CalibrationTest
    p_value: float

    @property
    def rejected(self) -> bool:
        """Whether the hypothesis is rejected at 5 %, after the correction."""
        return self.p_value <= 0.05


def judge(
    given: Predictions, *, draws: int = 1000, seed: int = 0, progress: Progress | None = None, early: bool = False
) -> tuple[Judgement, ...]:
    """Test each view of the predictions (see :func:`views`) with ESD.

    Confidences, the top label and the risk of two classes are tested as by :func:`calibration_test`. Classes and labels
    are families: their p-values are corrected by Holm's method, so that at most 5 % of calibrated models have any class
    or label rejected. Each of m views gets at least ``40 m`` draws, but they end early

    - once 20 draws are as bad as the data: the p-value is 20 over the number of draws (Besag and Clifford), which is
      valid;
    - after 100 draws if :func:`kuiper_test` finds a p-value below 1e-9 with ten expected events or more, which is then
      used.

    Args:
        given: Checked predictions, of 3 samples or more.
        draws: Number of data sets to draw for each view.
        seed: Seed of the draws.
        progress: Called with the number of views done and their number.
        early: Whether draws of confidences, the top label and the risk end early too; their p-values are then coarser.

    References:
        Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979; Besag,
        Clifford, "Sequential Monte Carlo p-values", Biometrika 1991.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> p = generator.dirichlet([2, 2, 2], 3000)
        >>> p[:, :2] = p[:, [1, 0]] + 0.1 * (p[:, [0, 1]] - p[:, [1, 0]])  # two classes are mixed up
        >>> target = (generator.random((3000, 1)) > p[:, [1, 0, 2]].cumsum(1)[:, :2]).sum(1)
        >>> found = metrics.judge(metrics.predictions(probabilities=p, target=target))
        >>> [(str(each.view), each.rejected) for each in found[1:]]
        [('probability of class 0', True), ('probability of class 1', True), ('probability of class 2', False)]
    """
    data = predictions(given, minimum=3, name="judge")
    found = views(data)
    family = [view for view in found if view.kind in ("class", "label")]
    tests = []
    for done, view in enumerate(found, 1):
        alone = view.kind not in ("class", "label") or len(family) == 1
        tests.append(
            calibration_test(view.pairs, draws=draws, seed=seed)
            if alone and not early
            else sequential_test(view.pairs, draws, seed)
            if alone
            else sequential_test(view.pairs, max(draws, DRAWS_EACH * len(family)), seed)
        )
        if progress is not None:
            progress(done, len(found))
    alone_first = len(found) - len(family)
    corrected = [test.p_value for test in tests[:alone_first]]
    corrected += holm([test.p_value for test in tests[alone_first:]])
    return tuple(Judgement(*each) for each in zip(found, tests, corrected, strict=True))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple testing (Holm, Scandinavian Journal of Statistics 6, 1979).

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    ascending = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=np.float64)[ascending] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[ascending] = np.minimum(np.maximum.accumulate(scaled), 1) if len(scaled) else scaled
    return corrected.tolist()


def sequential_test(pairs: Predictions, draws: int, seed: int) -> CalibrationTest:
    """Test of calibration with ESD that ends as soon as its answer is known."""
    rows = METRICS["esd"].rows
    assert rows is not None  # noqa: S101 (the table has it; mypy cannot see it)
    value = rows(pairs)
    observed = float(value(resampling.observed_residuals(pairs.groups))[0])
    z = pairs.confidence.astype(np.float64)
    analytic = kuiper_test(pairs).p_value if float((z * (1 - z)).sum()) >= EVENTS else 1.0
    return ended_early(value, observed, analytic, draws, lambda n: resampling.consistent_residuals(pairs, n, seed))


def ended_early(
    value: RowStatistic, observed: float, analytic: float, draws: int, residuals: Callable[[int], Iterable[Array]]
) -> CalibrationTest:
    """Compare a statistic with those of drawn residuals, until the answer is known.

    Args:
        value: The statistic of rows of residuals.
        observed: That of the data.
        analytic: p-value of Kuiper's test; 1 if its law does not hold.
        draws: Most draws.
        residuals: Makes so many draws, in blocks.
    """
    if analytic < BEYOND_DOUBT:
        draws = min(draws, FEWEST_DRAWS)
    drawn: list[Array] = []
    worse = made = 0
    for block in residuals(draws):
        null = value(block)
        slack = ROUNDING * max(abs(observed), float(np.abs(null).max()))
        as_bad = np.flatnonzero(null >= observed - slack)
        drawn.append(null)
        if worse + len(as_bad) >= ENOUGH:
            made += int(as_bad[ENOUGH - worse - 1]) + 1
            worse = ENOUGH
            break
        worse, made = worse + len(as_bad), made + len(null)
    null = np.concatenate(drawn)[:made]
    p_value = ENOUGH / made if worse >= ENOUGH else (1 + worse) / (1 + made)
    test = CalibrationTest("esd", observed, p_value, made, float(null.mean()), float(np.quantile(null, 0.95)))
    return replace(test, p_value=analytic) if analytic < BEYOND_DOUBT and worse == 0 else test
