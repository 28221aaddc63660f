"""Results of inference, in numbers and in a sentence: `CalibrationTest`, `Interval` and `Comparison`."""

from dataclasses import dataclass

from calibrant import inputs
from calibrant.metrics import notebook
from calibrant.metrics.table import described


def label(metric: str) -> str:
    """Display name of a metric."""
    return described(metric).label.strip()


def number(metric: str, value: float) -> str:
    """Format a value of a metric."""
    return described(metric).shown(value)


def p_value(value: float) -> str:
    """Format a p-value.

    Example:
        >>> p_value(0.000999), p_value(0.0123), p_value(0.4128)
        ('p < 0.001', 'p = 0.012', 'p = 0.413')
    """
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _interval(metric: str, low: float, high: float, level: float) -> str:
    return f"{100 * level:g} % interval {number(metric, low)} to {number(metric, high)}"


class Tested:
    """A test of the hypothesis of calibration."""

    p_value: float

    def rejected(self, level: float = 0.05) -> bool:
        """Whether the hypothesis of calibration is rejected at this level."""
        inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)
        return self.p_value <= level


@dataclass(frozen=True)
class CalibrationTest(Tested):
    """Test of the hypothesis that the model is calibrated.

    Attributes:
        metric: Name of the metric.
        statistic: Its value on the data; the gap with its sign.
        p_value: Share of the draws, including the data as one, that are at least as badly calibrated.
        draws: Number of data sets drawn from a calibrated model.
        null_mean: Mean of the metric over the draws, which a calibrated model scores by chance; for the gap, of its
            absolute value.
        critical_value: Value that a calibrated model exceeds in 5 % of the draws; for the gap, in absolute value.

    Example:
        >>> print(CalibrationTest("esd", 6.34e-4, 0.002, 1000, 0.0, 1.9e-4))
        ESD 6.34e-04, p = 0.002 (1,000 draws): the hypothesis that the model is calibrated is rejected at 5 %
    """

    metric: str
    statistic: float
    p_value: float
    draws: int
    null_mean: float
    critical_value: float

    def _repr_html_(self) -> str:
        rows = [
            (label(self.metric), number(self.metric, self.statistic)),
            ("p-value", p_value(self.p_value)),
            ("draws", f"{self.draws:,}"),
            ("by chance, on average", number(self.metric, self.null_mean)),
            ("by chance, in 5 % of draws above", number(self.metric, self.critical_value)),
        ]
        return notebook.table(str(self), (), rows)

    def __str__(self) -> str:
        found = f"{label(self.metric)} {number(self.metric, self.statistic)}, {p_value(self.p_value)}"
        rejected = "rejected" if self.rejected() else "not rejected"
        return f"{found} ({self.draws:,} draws): the hypothesis that the model is calibrated is {rejected} at 5 %"


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a metric.

    Attributes:
        metric: Name of the metric.
        value: Its value on the data.
        low: Lower end.
        high: Upper end.
        level: Probability with which such intervals contain the population value.
        method: ``"jackknife"`` or ``"bootstrap"``.

    Example:
        >>> print(Interval("gap", 0.031, 0.022, 0.04, 0.95, "jackknife"))
        gap 3.10 % (95 % interval 2.20 % to 4.00 %, jackknife)
    """

    metric: str
    value: float
    low: float
    high: float
    level: float
    method: str

    def _repr_html_(self) -> str:
        ends = f"{number(self.metric, self.low)} to {number(self.metric, self.high)}"
        rows = [
            (label(self.metric), number(self.metric, self.value)),
            (f"{100 * self.level:g} % interval", ends),
            ("method", self.method),
        ]
        return notebook.table(str(self), (), rows)

    def __str__(self) -> str:
        interval = _interval(self.metric, self.low, self.high, self.level)
        return f"{label(self.metric)} {number(self.metric, self.value)} ({interval}, {self.method})"


@dataclass(frozen=True)
class Comparison:
    """Two models on the same samples.

    Attributes:
        metric: Name of the metric.
        a: Its value for the first model.
        b: Its value for the second.
        difference: ``a - b``: above 0, the second is better; for accuracy, the first.
        low: Lower end of the confidence interval of the difference.
        high: Its upper end.
        p_value: Two-sided p-value of the hypothesis that the two do not differ.
        level: Confidence level of the interval.
        method: ``"jackknife"`` or ``"bootstrap"``.

    Example:
        >>> print(Comparison("ece", 0.05, 0.02, 0.03, 0.02, 0.04, 0.0001, 0.95, "bootstrap"))
        ECE 5.00 % (a), 2.00 % (b): b is better calibrated, p < 0.001 (95 % interval of a - b 2.00 % to 4.00 %)
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float
    method: str

    @property
    def better(self) -> str | None:
        """``"a"`` or ``"b"`` if one is better by this metric at this level, None if the data cannot tell."""
        if self.p_value > 1 - self.level:
            return None
        return "b" if (self.difference > 0) != described(self.metric).more_is_better else "a"

    def _repr_html_(self) -> str:
        ends = f"{number(self.metric, self.low)} to {number(self.metric, self.high)}"
        rows = [
            (f"{label(self.metric)} of a", number(self.metric, self.a)),
            (f"{label(self.metric)} of b", number(self.metric, self.b)),
            (f"a - b, {100 * self.level:g} % interval", ends),
            ("p-value", p_value(self.p_value)),
            ("method", self.method),
        ]
        return notebook.table(str(self), (), rows)

    def __str__(self) -> str:
        found = f"{label(self.metric)} {number(self.metric, self.a)} (a), {number(self.metric, self.b)} (b)"
        better = "better calibrated" if described(self.metric).only_calibration else "better"
        verdict = f"{self.better} is {better}" if self.better else "the data cannot tell which is better"
        interval = _interval(self.metric, self.low, self.high, self.level).replace("interval", "interval of a - b")
        return f"{found}: {verdict}, {p_value(self.p_value)} ({interval})"
