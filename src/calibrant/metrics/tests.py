"""Tests of calibration against draws from the null distribution, of one view or of all with Holm's correction.

Under the null hypothesis a sample is right with the probability that its confidence states. Draws are counts of right
samples among ties, for metrics that take these, else predictions. A sample of weight 2 is drawn as two, one of weight
0.3 with this probability.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, IndexArray
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.closed_form import HypothesisTest, closed_form_test, p_value
from calibrant.metrics.predictions import (
    Confidence,
    Correct,
    Keywords,
    Predictions,
    View,
    predictions,
    row_blocks,
    views,
)
from calibrant.metrics.registry import Chosen, Metric, find_metric, label, number
from calibrant.metrics.ties import Block, Ties
from calibrant.metrics.unbinned import esd_of_draws

# Called with the number of draws done, and the total number.
Progress = Callable[[int, int], None]
# Numbers in memory at a time: a few matrices of this size fit in a core's cache.
CELLS = 1 << 15
# Names of the streams of random numbers that belong to one seed.
NULL, BOOTSTRAP = 0, 1
# Draws that equal the data up to rounding are as extreme as the data.
ROUNDING = 1e-12
# Draws per view or group of a family: with fewer than 20, none could be rejected after the correction.
DRAWS_EACH = 40
# With so many draws as bad as the data, no more are needed.
ENOUGH = 20
# Kuiper's p-value that needs no draws, with enough expected events that its law holds roughly so far out.
TINY_P_VALUE, EVENTS = 1e-9, 10.0
LEAST_DRAWS = 100


@dataclass(frozen=True)
class CalibrationTest(HypothesisTest):
    """Test of the hypothesis that the model is calibrated.

    Attributes:
        statistic: Value of the metric on the data; the gap with its sign.
        p_value: Share of the draws, including the data as one, that are at least as badly calibrated.
        draws: Number of data sets drawn from a calibrated model.
        null_mean: Mean of the metric over the draws, which a calibrated model scores by chance; for the gap, of its
            absolute value.
        critical_value: Value that a calibrated model exceeds in 5 % of the draws; for the gap, in absolute value.
    """

    metric: str
    statistic: float
    p_value: float
    draws: int
    null_mean: float
    critical_value: float

    def __str__(self) -> str:
        found = f"{label(self.metric)} {number(self.metric, self.statistic)}, {p_value(self.p_value)}"
        rejected = "rejected" if self.rejected else "not rejected"
        return f"{found} ({self.draws:,} draws): the hypothesis that the model is calibrated is {rejected} at 5 %"


def calibration_test(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    metric: Chosen = "esd",
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **keywords: Unpack[Keywords],
) -> CalibrationTest:
    """Test the hypothesis that the model is calibrated, by consistency resampling: :doc:`/inference`.

    Correctness is drawn many times with the stated probabilities. With k draws of n as bad as the data, p is
    (1 + k) / (1 + n), exact for any metric and number of samples (Bröcker, Smith, Weather and Forecasting 2007;
    Vaicenavicius et al., AISTATS 2019). The gap counts by its absolute value. For Brier, log loss, accuracy and AURC,
    of which low and high values alike show miscalibration, p is twice the smaller of the two sides.

    Args:
        metric: Name of a function of :mod:`calibrant.metrics`, such as ``"ece"`` or ``"smooth_ece"``; the keys of
            ``calibrant.metrics.registry`` list all. Or the function itself; or your own function of
            :class:`~calibrant.metrics.Predictions` that grows as calibration gets worse.
        draws: Number of data sets to draw. The smallest possible p-value is ``1 / (1 + draws)``.
        seed: Seed of the draws.
        bins: Number of bins of the binned metrics; by default the convention's, or 15 of equal mass.
        convention: Convention of the equal-width bins, as in :func:`calibrant.metrics.ece`.
    """
    measure = asked_metric(metric, draws, seed, bins, convention)
    data = single(predictions(confidence, correct, minimum=measure.minimum, name=label(measure.key), **keywords))
    return test_of_metric(data, measure, draws, seed)


def test_of_metric(data: Predictions, measure: Metric, draws: int, seed: int) -> CalibrationTest:
    """The test of :func:`calibration_test` of checked predictions."""
    observed, null = value_of(data, measure), null_values(data, measure, draws, seed)
    size = observed
    if measure.kind == "signed":
        size, null = abs(observed), np.abs(null)
    slack = ROUNDING * max(abs(observed), float(np.abs(null).max()))
    p_value = (1 + int((null >= size - slack).sum())) / (1 + draws)
    if measure.kind == "mixed":
        p_value = min(2 * min(p_value, (1 + int((null <= size + slack).sum())) / (1 + draws)), 1.0)
    return CalibrationTest(measure.key, observed, p_value, draws, float(null.mean()), float(np.quantile(null, 0.95)))


@dataclass(frozen=True, eq=False)
class Judgement(HypothesisTest):
    """Test of one view.

    Attributes:
        test: Test of the hypothesis that the probabilities of the view are calibrated, with ESD.
        p_value: Its p-value, corrected for the number of classes or labels that were tested.
    """

    view: View
    test: CalibrationTest
    p_value: float


def judge(
    given: Predictions, *, draws: int = 1000, seed: int = 0, progress: Progress | None = None, early: bool = False
) -> tuple[Judgement, ...]:
    """Test each view of the predictions (see :func:`calibrant.metrics.predictions.views`) with ESD.

    Confidences, the top label and the risk of two classes are tested as by :func:`calibration_test`. The p-values of
    classes and labels are corrected by Holm's method, so that at most 5 % of calibrated models have any of them
    rejected. Each of m gets at least ``40 m`` draws, but they end once 20 are as bad as the data: the p-value is 20
    over their number (Besag, Clifford, Biometrika 1991). They also end after 100 if Kuiper's :func:`closed_form_test`
    has a p-value below 1e-9 with ten expected events or more, which is then used.

    Args:
        given: Checked predictions, of 3 samples or more.
        draws: Number of data sets to draw for each view.
        progress: Called with the number of views done and their number.
        early: Whether draws of confidences, the top label and the risk end early too; their p-values are then coarser.
    """
    found = views(predictions(given, minimum=3, name="judge"))
    return judge_views(found, draws=draws, seed=seed, progress=progress, early=early)


def judge_views(
    found: Sequence[View], *, draws: int, seed: int, progress: Progress | None = None, early: bool = False
) -> tuple[Judgement, ...]:
    """The tests of :func:`judge` of these views."""
    inputs.check_count("draws", draws)
    family = [view for view in found if view.kind in ("class", "label")]
    if len(family) == 1:
        family = []
    tests: list[CalibrationTest] = []
    for view in found:
        if early or view in family:
            many = max(draws, DRAWS_EACH * len(family)) if view in family else draws
            tests.append(sequential_test(view.pairs, many, seed))
        else:
            tests.append(calibration_test(view.pairs, draws=draws, seed=seed))
        if progress is not None:
            progress(len(tests), len(found))
    p_values = [test.p_value for test in tests]
    alone = len(found) - len(family)  # these come first
    corrected = p_values[:alone] + holm(p_values[alone:])
    return tuple(Judgement(*each) for each in zip(found, tests, corrected, strict=True))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple testing (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    ascending = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=np.float64)[ascending] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[ascending] = np.minimum(np.maximum.accumulate(scaled), 1) if len(scaled) else scaled
    return corrected.tolist()


def sequential_test(pairs: Predictions, draws: int, seed: int) -> CalibrationTest:
    """Test of calibration with ESD that ends as soon as its answer is known."""
    ties = pairs.ties
    value = esd_of_draws(pairs)
    observed = float(value(observed_ties(ties))[0])
    events = float((ties.samples * ties.confidence * (1 - ties.confidence)).sum())
    kuiper = closed_form_test(pairs).p_value if events >= EVENTS else 1.0
    if kuiper < TINY_P_VALUE:
        draws = min(draws, LEAST_DRAWS)
    null: Array = np.zeros(0)
    worse: IndexArray = np.zeros(0, dtype=np.intp)
    for block in null_ties(ties, draws, seed):
        null = np.append(null, value(block))
        slack = ROUNDING * max(abs(observed), float(np.abs(null).max()))
        worse = np.flatnonzero(null >= observed - slack)
        if len(worse) >= ENOUGH:
            null = null[: worse[ENOUGH - 1] + 1]
            break
    p_value = ENOUGH / len(null) if len(worse) >= ENOUGH else (1 + len(worse)) / (1 + len(null))
    if kuiper < TINY_P_VALUE and not len(worse):
        p_value = kuiper
    return CalibrationTest("esd", observed, p_value, len(null), float(null.mean()), float(np.quantile(null, 0.95)))


def asked_metric(metric: Chosen, draws: int, seed: int, bins: int | None, convention: ConventionName) -> Metric:
    """The metric of a test or an interval, after a check of its draws and seed."""
    inputs.check_count("draws", draws)
    inputs.check_count("seed", seed, low=0)
    return find_metric(metric, bins, convention)


def single(data: Predictions) -> Predictions:
    """The predictions, unless they have several labels: those of one sample depend on each other."""
    if data.task == "multi-label" and data.classes != 1:
        raise ValueError(
            f"inference treats pairs as independent, and the {data.classes} labels of a sample are not: take the "
            "labels one by one, predictions.of_class(k)"
        )
    return data


def block_sizes(draws: int, width: int) -> Iterator[int]:
    """Numbers of draws to make at a time if each is a row of ``width`` numbers."""
    rows = max(1, CELLS // max(width, 1))
    for start in range(0, draws, rows):
        yield min(rows, draws - start)


def observed_ties(ties: Ties) -> Block:
    """The data themselves, as one draw."""
    return Block(ties.confidence, ties.samples, ties.right[np.newaxis])


def null_ties(ties: Ties, draws: int, seed: int) -> Iterator[Block]:
    """Draws from a calibrated model with these confidences, in blocks."""
    alone, together, fractions = np.random.default_rng((seed, NULL)).spawn(3)
    z, samples, _ = ties
    whole = np.floor(samples)
    fractional = bool((whole < samples).any())
    tied = np.flatnonzero(samples > 1)
    for rows in block_sizes(draws, len(z)):
        if fractional:
            counts = whole + (fractions.random((rows, len(z))) < samples - whole)
            # Residuals of the draw, as if it had the number of samples that it has on average.
            right = together.binomial(counts.astype(np.int64), z) + (samples - counts) * z
        else:
            right = alone.random((rows, len(z)))
            np.less(right, z, out=right)
            if len(tied):
                right[:, tied] = together.binomial(samples[tied].astype(np.int64), z[tied], (rows, len(tied)))
        yield Block(z, samples, right)


def null_predictions(given: Predictions, draws: int, seed: int, *, of_classes: bool) -> Iterator[Predictions]:
    """The same as predictions, one at a time, for any metric; with ``of_classes``, of all classes if they are known."""
    generator = np.random.default_rng((seed, NULL))
    given = given if of_classes and given.probabilities is not None else given.pairs
    weight = given.sample_weight
    for _ in range(draws):
        drawn = given
        if weight is not None:
            counts = np.floor(weight)
            if (counts < weight).any():
                counts += generator.random(len(weight)) < weight - counts
            drawn = given.repeated(counts)
        yield _with_outcomes(drawn, generator)


def _with_outcomes(given: Predictions, generator: np.random.Generator) -> Predictions:
    if given.probabilities is None or given.task == "multi-label":  # of a single label, see `single`
        correct = generator.random(len(given)) < given.confidence
        target = None if given.target is None else correct.astype(np.intp)[:, np.newaxis]
        return replace(given, correct=correct, target=target)
    shares = given.probabilities.cumsum(1, dtype=np.float64)
    shares /= shares[:, -1:]
    uniform = generator.random((len(given), 1))
    target = np.concatenate([(shares[rows] <= uniform[rows]).sum(1) for rows in row_blocks(len(given))])
    scores = given.probabilities if given.logits is None else given.logits
    return replace(given, correct=scores.argmax(1) == target, target=target)


def value_of(data: Predictions, measure: Metric) -> float:
    """The metric of the data, by the same sums as that of draws: a draw that equals the data must tie with it."""
    if measure.of_draws is None:
        return float(finite(np.array([measure.value(data)]), measure)[0])
    return float(measure.of_draws(data)(observed_ties(data.ties))[0])


def null_values(data: Predictions, measure: Metric, draws: int, seed: int) -> Array:
    """The metric of draws from a calibrated model with the same confidences."""
    if measure.of_draws is not None:
        value = measure.of_draws(data)
        return np.concatenate([value(block) for block in null_ties(data.ties, draws, seed)])
    drawn = null_predictions(data, draws, seed, of_classes=measure.of_classes)
    return finite(np.array([measure.value(each) for each in drawn]), measure)


def finite(values: Array, measure: Metric) -> Array:
    """Values of a metric of data or draws; functions of the user's own may return anything."""
    bad = values[~np.isfinite(values)]
    if len(bad):
        raise ValueError(
            f"{label(measure.key)} must be a finite number, got {bad[0]} for {len(bad):,} of {len(values):,} data "
            "sets: use more samples or fewer bins, or correct the metric"
        )
    return values
