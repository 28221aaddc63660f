"""Choose the weight of a calibration objective on validation data, by the rule of the ESD paper."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrant.inputs import check_count, check_range

FORMATS = (".png", ".svg", ".pdf")
Fit = Callable[[float, int], Any]
Scores = dict[tuple[float, int], tuple[float, float]]


@dataclass(frozen=True)
class WeightScores:
    """Validation scores of one weight.

    Attributes:
        weight: Weight of the objective.
        accuracy: Accuracy of every seed, as a share.
        ece: ECE of every seed, as a share.
        failure: Error of a failed seed; None if none failed.
    """

    weight: float
    accuracy: tuple[float, ...]
    ece: tuple[float, ...]
    failure: str | None = None

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy over the seeds; NaN without any."""
        return statistics.fmean(self.accuracy) if self.accuracy else math.nan

    @property
    def mean_ece(self) -> float:
        """Mean ECE over the seeds; NaN without any."""
        return statistics.fmean(self.ece) if self.ece else math.nan

    @property
    def accuracy_spread(self) -> float:
        """Standard deviation of the accuracy over the seeds; NaN with fewer than two."""
        return statistics.stdev(self.accuracy) if len(self.accuracy) > 1 else math.nan

    @property
    def ece_spread(self) -> float:
        """Standard deviation of the ECE over the seeds; NaN with fewer than two."""
        return statistics.stdev(self.ece) if len(self.ece) > 1 else math.nan


@dataclass(frozen=True)
class SearchResult:
    """Result of :func:`search`; ``print`` it for a table.

    Attributes:
        weight: Chosen weight; that of the baseline if no other qualifies.
        baseline: Scores of the baseline.
        candidates: Scores of the other weights, in ascending order.
        seeds: Seeds of the runs of every weight.
        accuracy_tolerance: A weight qualifies if it loses less accuracy than this share.
    """

    weight: float
    baseline: WeightScores
    candidates: tuple[WeightScores, ...]
    seeds: tuple[int, ...]
    accuracy_tolerance: float

    @property
    def qualified(self) -> tuple[WeightScores, ...]:
        """Candidates without a failure that lose less accuracy than the tolerance."""
        limit = self.accuracy_tolerance - 1e-9  # a difference of exactly 1.5 points may be less by rounding
        return tuple(each for each in self.candidates if each.failure is None and self._loss(each) < limit)

    def _loss(self, scores: WeightScores) -> float:
        return self.baseline.mean_accuracy - scores.mean_accuracy

    def __str__(self) -> str:
        rows = [("weight", "accuracy %", "ECE %", "")]
        rows += [
            (f"{each.weight:g}", _percent(each.mean_accuracy, each.accuracy_spread),
             _percent(each.mean_ece, each.ece_spread), self._remark(each))
            for each in (self.baseline, *self.candidates)
        ]  # fmt: skip
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*map(str.rjust, row[:3], widths), row[3]]).rstrip() for row in rows]
        return "\n".join([*lines, "", self._sentence()])

    def _remark(self, scores: WeightScores) -> str:
        if scores is self.baseline:
            return "baseline"
        if scores.failure is not None:
            return f"discarded: {scores.failure}"
        if scores not in self.qualified:
            return f"loses {100 * self._loss(scores):.2f} points of accuracy"
        return "chosen" if scores.weight == self.weight else ""

    def _sentence(self) -> str:
        rule = f"less than {100 * self.accuracy_tolerance:g} points of accuracy against weight {self.baseline.weight:g}"
        shown = "one seed" if len(self.seeds) == 1 else f"mean ± standard deviation over {len(self.seeds)} seeds"
        ending = f"Validation data, ECE with 20 bins, {shown}."
        if not self.qualified:
            return f"No weight loses {rule}: the baseline stays. {ending}"
        chosen = min(self.qualified, key=lambda each: each.mean_ece)
        worse = " Its ECE is not below that of the baseline." if chosen.mean_ece >= self.baseline.mean_ece else ""
        return f"Weight {self.weight:g} has the lowest mean ECE of those that lose {rule}.{worse} {ending}"


def search(
    fit: Fit, weights: Iterable[float], seeds: int | Iterable[int] = 3, *, accuracy_tolerance: float = 0.015,
    baseline: float = 0.0, figure: str | Path | None = None, store: str | Path | None = None,
) -> SearchResult:  # fmt: skip
    """Train with several weights and seeds, and choose a weight on validation data.

    The rule is that of the ESD paper: among the weights that lose less than 1.5 points of validation accuracy against
    training without the objective, choose the one with the lowest validation ECE (20 equal-width bins). Both are means
    over the seeds. If a seed of a weight fails, the weight is discarded. If no weight qualifies, the result is the
    baseline.

    Args:
        fit: Function of ``(weight, seed)`` that trains and returns validation ``(logits, target)``, or a mapping with
            ``accuracy`` and ``ece`` as shares.
        weights: Weights of the objective to try.
        seeds: Number of seeds (0, 1, 2 and so on), or the seeds themselves.
        accuracy_tolerance: A weight qualifies if it loses less accuracy than this share.
        baseline: Weight that the others are compared with; it is run too.
        figure: Path of a figure of ECE and accuracy against the weight (PNG, SVG or PDF); needs the extra ``report``.
        store: Path of a JSON file that keeps finished runs. The same call runs only those that are missing, after an
            interruption or with more weights. Use another file when ``fit`` changes.

    Returns:
        All scores and the chosen ``weight``.

    References:
        Yoon, Tee, Yoon, Yoon, Kim, Li, Yoo, "ESD: Expected Squared Difference as a Tuning-Free Trainable
        Calibration Measure", ICLR 2023.

    Example:
        >>> def fit(weight, seed):
        ...     return {"accuracy": 0.9 - 0.004 * weight, "ece": 0.05 / (1 + weight) + 0.001 * seed}
        >>> result = search(fit, weights=[1, 3, 10], seeds=2)
        >>> result.weight
        3.0
        >>> print(result)
        weight    accuracy %        ECE %
             0  90.00 ± 0.00  5.05 ± 0.07  baseline
             1  89.60 ± 0.00  2.55 ± 0.07
             3  88.80 ± 0.00  1.30 ± 0.07  chosen
            10  86.00 ± 0.00  0.50 ± 0.07  loses 4.00 points of accuracy
        <BLANKLINE>
        Weight 3 has the lowest mean ECE of those that lose less than 1.5 points of accuracy against weight 0.
        Validation data, ECE with 20 bins, mean ± standard deviation over 2 seeds.
    """
    check_range("accuracy_tolerance", accuracy_tolerance, low=0, high=1)
    tried = sorted({float(weight) for weight in weights} - {float(baseline)})
    if not tried:
        raise ValueError("weights must have at least one weight other than that of the baseline")
    for weight in (baseline, *tried):
        check_range("a weight", weight, low=0)
    if isinstance(seeds, int):
        check_count("seeds", seeds)
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
    if not numbers:
        raise ValueError("seeds must have at least one seed")
    draw = None if figure is None else _drawing(Path(figure))
    known = {} if store is None else _read(Path(store))

    def scored(weight: float) -> WeightScores:
        found: list[tuple[float, float]] = []
        failure = None
        for seed in numbers:
            if (weight, seed) not in known:
                try:
                    known[weight, seed] = _scores(fit(weight, seed))
                except Exception as error:
                    if weight == baseline:  # nothing could be compared
                        raise
                    failure = f"seed {seed} failed with {type(error).__name__}: {' '.join(str(error).split())}"
                    break
                if store is not None:
                    _write(Path(store), known)
            found.append(known[weight, seed])
        accuracy, ece = zip(*found, strict=True) if found else ((), ())
        return WeightScores(weight, accuracy, ece, failure)

    reference = scored(float(baseline))
    result = SearchResult(reference.weight, reference, tuple(map(scored, tried)), numbers, accuracy_tolerance)
    result = replace(result, weight=min(result.qualified, key=lambda each: each.mean_ece, default=reference).weight)
    if draw is not None and figure is not None:
        draw(Path(figure), result)
    return result


def _scores(returned: Any) -> tuple[float, float]:
    """Accuracy and ECE of what ``fit`` returned."""
    from calibrant import metrics

    if isinstance(returned, Mapping):
        if {"accuracy", "ece"} - returned.keys():
            raise ValueError(f"fit must return accuracy and ece, got {', '.join(map(str, returned))}")
        accuracy, ece = float(returned["accuracy"]), float(returned["ece"])
    elif isinstance(returned, tuple) and len(returned) == 2:
        given = metrics.predictions(logits=returned[0], target=returned[1])
        accuracy, ece = metrics.accuracy(given), metrics.ece(given, bins=20, convention="paper")
    else:
        raise TypeError(
            f"fit must return (logits, target) or a mapping with accuracy and ece, got {type(returned).__name__}"
        )
    if not (0 <= accuracy <= 1 and 0 <= ece <= 1):
        raise ValueError(f"accuracy and ECE must be shares between 0 and 1, got {accuracy:g} and {ece:g}")
    return accuracy, ece


def _percent(mean: float, spread: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{100 * mean:.2f}" + ("" if math.isnan(spread) else f" ± {100 * spread:.2f}")


def _read(path: Path) -> Scores:
    if not path.exists():
        return {}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return {(float(row["weight"]), int(row["seed"])): (float(row["accuracy"]), float(row["ece"])) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold the runs of a search: choose another store, or remove it") from error


def _write(path: Path, known: Scores) -> None:
    from calibrant.files import write_whole

    runs = [
        {"weight": weight, "seed": seed, "accuracy": accuracy, "ece": ece}
        for (weight, seed), (accuracy, ece) in sorted(known.items())
    ]
    write_whole(path, json.dumps({"runs": runs}, indent=2) + "\n")


def _drawing(path: Path) -> Callable[[Path, SearchResult], None]:
    """Return the drawing function, or raise an error before anything is trained."""
    try:
        from calibrant_lab.search_figure import write_search_figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a figure needs {error.name}: pip install 'calibrant[report]'", name=error.name
        ) from error
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a figure is written as one of {', '.join(FORMATS)}, got {path.name!r}")
    return write_search_figure
