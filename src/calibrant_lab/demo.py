"""A first look at calibrated training: a small sweep on synthetic data, compared with the known truth."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

import calibrant as cal
from calibrant.files import read_predictions, write_predictions
from calibrant.metrics.closed_form import p_value
from calibrant.report import audit, write_report
from calibrant.report.formats import counted
from calibrant_lab.paper.tables.significance import compare, least_p
from calibrant_lab.recipes.made import true_test_probabilities
from calibrant_lab.score_table import print_whole, score_table
from calibrant_lab.scores import Column, Predicted, column, scores_of
from calibrant_lab.sweeps.live import LiveView
from calibrant_lab.sweeps.run import run
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.local_executor import LocalExecutor
from calibrant_lab.trials.store import Store

SWEEP = Path(__file__).with_name("demo.toml")
LOOP, TRUTH = "CalibratedLoss", "the true probabilities"
# Name of a row -> method, and post-hoc scaling applied afterwards.
ROWS = {"NLL": ("nll", ""), "NLL + temperature": ("nll", "+temperature"), "NLL + ESD": ("esd", ""), LOOP: ("loop", "")}
OTHERS = ("NLL + temperature", "NLL + ESD", "NLL")  # what CalibratedLoss is tested against
ABOUT = "Synthetic data with known true probabilities. The models below are those of the first seed."
COMPARED = ("accuracy", "ece", "log_loss")
Scores = dict[str, list[dict[str, float]]]


def run_demo(
    out: Path, console: Console, changes: Mapping[str, int], *, seeds: int, workers: int | None = None
) -> Scores:
    """Train every method with every seed, print the comparison, and return the scores by row."""
    asked = Sweep.read(SWEEP)
    sweep = asked.model_copy(update={"seeds": seeds, "settings": asked.settings | dict(changes)})
    store = Store(out / "runs")
    executor = LocalExecutor(store.folder, None, workers=workers, accelerator="cpu")
    total = seeds * (1 + len(sweep.methods))
    with LiveView(store, Console(stderr=True), total=total) as view:
        trials = {(one.method, one.seed): one for one in run(sweep, store, executor, view.show).needed}
    if any(store.result(one) is None for one in trials.values()):
        raise ValueError("the demo needs all its networks, and some failed: see the errors above")
    columns = [column(key) for key in sweep.columns]
    scores = _scores(store, trials, columns)
    sentences = list(differences(scores, [one for one in columns if one.key in COMPARED], LOOP, OTHERS))
    _write(out, store, trials, sentences)
    _show(console, sweep, scores, columns, sentences, out)
    return scores


def _scores(store: Store, trials: Mapping[tuple[str, int], Configuration], columns: Sequence[Column]) -> Scores:
    keys = [one.key for one in columns]
    found: Scores = {
        row: [
            {key: store.trial(trial).score("test", key + repair) for key in keys}
            for (method, _), trial in trials.items()
            if method == wanted
        ]
        for row, (wanted, repair) in ROWS.items()
    }
    test = store.trial(next(iter(trials.values()))).predicted("test")
    truth = Predicted(true_test_probabilities(len(test.target)).log(), test.target)
    return found | {TRUTH: [scores_of(truth, truth, keys)]}


def differences(scores: Scores, columns: Sequence[Column], row: str, others: Sequence[str]) -> Iterator[str]:
    """Describe the differences between one row and each of the others, one sentence per comparison."""
    seeds = len(scores[row])
    if seeds == 1:
        yield "One seed: train more for a paired test of the differences."
        return
    values = {
        name: {one.key: {seed: one.factor * found[one.key] for seed, found in enumerate(given)} for one in columns}
        for name, given in scores.items()
    }
    comparisons = compare(values, [(row, other) for other in others], {one.key: one.better for one in columns})
    found = {(one.against, one.measure): one for one in comparisons}
    for other in others:
        parts = []
        for one in columns:
            if (tested := found.get((other, one.key))) is None:  # no temperature could be fitted
                continue
            mean, ours, theirs = tested.paired.difference, values[row][one.key], values[other][one.key]
            word = "lower" if mean < 0 else "higher"
            same = sum((ours[seed] - theirs[seed]) * mean > 0 for seed in ours)
            size = f"{abs(mean):.{2 if one.factor == 100 else 3}f}{' points' if one.factor == 100 else ''}"
            details = f"({p_value(tested.p_holm)}, {word} in {same} of {seeds} seeds)"
            parts.append(f"{one.label} {f'{size} {word} {details}' if mean else 'the same'}")
        yield f"{row} against {other}: {', '.join(parts)}."
    yield (
        f"p: paired t-test over the seeds, corrected by Holm for {len(found)} tests; an exact test of {seeds} seeds "
        f"cannot go below {least_p(seeds):.4g}."
    )


def _write(out: Path, store: Store, trials: Mapping[tuple[str, int], Configuration], sentences: Sequence[str]) -> None:
    """Write the first seed's predictions and a report on them."""
    audits = []
    for name, (method, repair) in ROWS.items():
        trial = store.trial(trials[method, 0])
        logits, target = trial.predicted("test")
        if repair:
            validation = trial.predicted("validation")
            write_predictions(out / "nll-validation.npz", *(part.numpy() for part in validation), kind="logits")
            logits = cal.posthoc.TemperatureScaling(strict=True).fit(*validation)(logits)
        path = out / f"{method}{repair.replace('+', '-')}.npz"
        write_predictions(path, logits.numpy(), target.numpy(), kind="logits")
        audits.append(audit(name, read_predictions(path)))
    first, *others = audits
    compared = [
        (first.name, one.name, cal.metrics.compare(first.predictions, one.predictions, metric="esd")) for one in others
    ]
    write_report(out / "report.html", audits, compared, opening=[ABOUT, *sentences])


def _show(
    console: Console, sweep: Sweep, scores: Scores, columns: Sequence[Column], sentences: Sequence[str], out: Path
) -> None:
    settings = sweep.base.settings
    rows, test_rows = settings.rows, settings.test_rows  # type: ignore[attr-defined]
    title = f"Synthetic data, {counted(settings.epochs, 'epoch')}, {counted(len(scores[LOOP]), 'seed')}"
    print_whole(console, score_table(scores, columns, title=title, apart=TRUTH))
    held_out = math.floor(settings.calibration_fraction * rows)
    about = (
        f"Synthetic data: labels are drawn from the probabilities of a random teacher network, so the truth is known. "
        f"{rows:,} training rows; ESD and CalibratedLoss hold out {held_out:,} of them, temperature scaling has "
        f"{held_out:,} extra. {test_rows:,} test rows. The settings were chosen so that NLL overfits. "
        "error_of_p: mean |predicted - true probability| of the predicted class. ECE in 20 bins."
    )
    for line in (about, *sentences):
        console.print(line, highlight=False, markup=False)
    files = " ".join(str(out / f"{stem}.npz") for stem in ("nll", "loop"))
    console.print(
        f"Report on the first seed: {out / 'report.html'}. Try its predictions: calibrant evaluate {files}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
