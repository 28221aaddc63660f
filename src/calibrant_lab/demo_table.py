"""The demo's scores, its table, and which differences survive a paired test over the seeds."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from torch import Tensor

import calibrant as cal
from calibrant_lab.made_data import Rows
from calibrant_lab.trials.scores import BINS
from calibrant_lab.paper.tables.significance import holm, paired_test


@dataclass(frozen=True)
class DemoScores:
    """Scores on the test rows: shares, not percent.

    Attributes:
        accuracy: Share of right predictions.
        ece: 20 bins of equal width.
        log_loss: Mean NLL.
        error: Mean absolute difference of the predicted and the true probability of the predicted class.
    """

    accuracy: float
    ece: float
    log_loss: float
    error: float


# Heading, value, whether more or less is better, digits.
Column = tuple[str, Callable[[DemoScores], float], int, int]
COLUMNS: list[Column] = [
    ("accuracy %", lambda scores: 100 * scores.accuracy, 1, 2),
    ("ECE %", lambda scores: 100 * scores.ece, -1, 2),
    ("log loss", lambda scores: scores.log_loss, -1, 3),
    ("error of p %", lambda scores: 100 * scores.error, -1, 2),
]


def score(logits: Tensor, test: Rows) -> DemoScores:
    """Score logits on rows whose true probabilities are known."""
    found = cal.metrics.evaluate(logits=logits, target=test.target, bins=BINS)
    confidence, predicted = logits.double().softmax(1).max(1)
    true = test.truth.gather(1, predicted.unsqueeze(1)).squeeze(1)
    return DemoScores(found.accuracy, found.ece, found.nll, float((confidence - true).abs().mean()))


def demo_table(rows: Mapping[str, Sequence[DemoScores]], *, title: str, bound: str) -> Table:
    """One row a method, mean ± standard deviation over seeds; the best mean of each column in bold.

    Args:
        rows: Scores of each seed by name.
        title: Title of the table.
        bound: Name of the row that no method can beat, and that stands apart.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading, *_ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    means = {name: [statistics.fmean(map(value, scores)) for _, value, *_ in COLUMNS] for name, scores in rows.items()}
    for name, scores in rows.items():
        cells = []
        for place, (_, value, better, digits) in enumerate(COLUMNS):
            best = max(mean[place] * better for other, mean in means.items() if other != bound)
            text = _mean_and_spread([value(one) for one in scores], digits)
            is_best = name != bound and means[name][place] * better == best
            cells.append(f"[bold]{text}[/]" if is_best else text)
        table.add_row(name, *cells)
    return table


def _mean_and_spread(values: Sequence[float], digits: int) -> str:
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean}±{statistics.stdev(values):.{digits}f}"


def differences(rows: Mapping[str, Sequence[DemoScores]], method: str, others: Sequence[str]) -> Iterator[str]:
    """Say, in a sentence for each other method, by how much the scores of a method differ.

    Args:
        rows: Scores of each seed by name.
        method: The method to compare.
        others: The methods to compare it with.
    """
    seeds = len(rows[method])
    if seeds == 1:
        yield "One seed: run more for a paired test of the differences."
        return
    measures: list[tuple[str, Callable[[DemoScores], float], str]] = [
        ("accuracy", lambda scores: 100 * scores.accuracy, "{:.2f} points"),
        ("ECE", lambda scores: 100 * scores.ece, "{:.2f} points"),
        ("log loss", lambda scores: scores.log_loss, "{:.3f}"),
    ]
    gaps = {
        (other, name): [value(ours) - value(theirs) for ours, theirs in zip(rows[method], rows[other], strict=True)]
        for other in others
        for name, value, _ in measures
    }
    tests = {key: paired_test(values) for key, values in gaps.items()}
    corrected = dict(zip(tests, holm([test.p_t for test in tests.values()]), strict=True))
    for other in others:
        parts = []
        for name, _, form in measures:
            mean, p = tests[other, name].difference, corrected[other, name]
            if mean == 0:
                parts.append(f"{name} the same")
                continue
            word = "lower" if mean < 0 else "higher"
            same = sum(value * mean > 0 for value in gaps[other, name])
            p_text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
            parts.append(f"{name} {form.format(abs(mean))} {word} ({p_text}, {word} in {same} of {seeds} seeds)")
        yield f"{method} against {other}: {', '.join(parts)}."
    yield f"p: paired t-test over the seeds, corrected by Holm for the {len(tests)} tests."
