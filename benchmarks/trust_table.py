"""The trust table from finished runs: means over seeds, the targets, and whether they are met."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.tables import RESULTS, markdown
from benchmarks.trust import ABLATIONS, MAIN, SEARCHED, WEIGHTS, chosen_weight, path_of
from benchmarks.trust_settings import SETTINGS

NAMES = {
    "nll-all": "NLL on all data",
    "nll": "NLL on the reduced split",
    "nll-stopped": "NLL, stopped by held-out log loss after T",
    "esd-1": "published ESD, λ = 1",
    "esd": "published ESD, λ searched",
    "mmce": "MMCE, λ searched",
    "sb-ece": "SB-ECE, λ searched",
    "bsce-gra": "BSCE-GRA",
    "dual-focal": "dual focal",
    "label-smoothing": "label smoothing 0.05",
    "loop": "**CalibratedLoss**",
    "loop-esd": 'CalibratedLoss, criterion="esd"',
    "loop-smoothing": "CalibratedLoss, label smoothing 0.05",
    "head": 'CalibratedLoss, method="head"',
    "fixed-t": "fixed T = e⁶, no loop",
    "esd-corrected": "ESD with finite-set correction and running root, λ = 1",
}
CHANGES = {
    "nll": "NLL + T",
    "loop": "**defaults**",
    "loop-every1": "a held-out batch at every step (default: every 4th)",
    "loop-every2": "at every 2nd step",
    "loop-every8": "at every 8th step",
    "loop-every16": "at every 16th step",
    "loop-buffer500": "T from the latest 500 held-out logits (default: 2,000)",
    "loop-buffer8000": "T from the latest 8,000",
    "loop-damping0.3": "damping 0.3 (default: 0.7)",
    "loop-damping1": "damping 1",
    "loop-patience0": "T moves from the start (patience=0)",
    "loop-dropout": "dropout on for held-out batches",
    "loop-esd": 'T by ESD (criterion="esd")',
    "head": 'held-out NLL through the head (method="head")',
    "fixed-t": "fixed T = e⁶, then a temperature",
    **{name: NAMES[name] for name in ("esd-1", "esd", "esd-corrected")},
}
ORDER = ["nll-all", "nll", "nll-stopped", "esd-1", *SEARCHED, "bsce-gra", "dual-focal", "label-smoothing", "loop",
         "loop-smoothing", "loop-esd", "head"]  # fmt: skip
HEADING = [
    "", "n", "accuracy %", "ECE %", "log loss", "Brier", "ECE % after T", "log loss after T", "Brier after T",
    "held-out - new accuracy", "processor time",
]  # fmt: skip

# The simple alternatives that stand beside the method, and which of a run's log losses counts: CalibratedLoss has its
# temperature already.
SIMPLE = {
    "nll": ("NLL + T", "log_loss_after"),
    "nll-stopped": ("NLL stopped + T", "log_loss_after"),
    "label-smoothing": ("label smoothing + T", "log_loss_after"),
    "loop": ("CalibratedLoss", "log_loss"),
}

# Runs of several sessions.
MACHINES = "AMD EPYC and Intel Xeon machines, one thread a run, Python 3.11.7, torch 2.13.0"
KEPT = RESULTS / "trust" / "trust.json"
PAGE = RESULTS.parent / "docs" / "results" / "trust.md"
ABLATED = (
    "One change at a time: mean test log loss over seeds; of the NLL and of the fixed T after a temperature, of all "
    "other rows as trained."
)
START, END = "<!-- written by python -m benchmarks.trust table -->\n\n", "\n\n<!-- end -->"

Runs = list[dict[str, Any]]


def write(runs: Path) -> None:
    """Write results/trust/trust.md and trust.json."""
    found = {name: _found(runs, name) for name in SETTINGS}
    text = [
        "# The trust table",
        "",
        f"Measured by `python -m benchmarks.trust` on {MACHINES}. Mean ± standard deviation over n seeds, on test "
        "data. No λ, epoch or temperature is chosen on them, but parts of CalibratedLoss were designed after looking "
        "at test scores of these settings. A tenth of the pool is for validation, a tenth of the rest is held out; "
        "only *NLL on all data* trains on the held-out part too. ECE in 20 equal-width bins. *After T*: a temperature "
        "fitted on the held-out part. Processor time: of the training loop relative to the NLL on the reduced split, "
        "on one thread of a machine with other work; under *Targets* in turns of 40 steps in one process, medians. "
        "(!): beyond chance. λ is searched in "
        f"{', '.join(f'{weight:g}' for weight in WEIGHTS)} by the paper's rule, one seed.",
        "",
    ]
    for name, methods in found.items():
        if methods:
            text += _section(name, methods)
    text += ["## Ablation", "", ABLATED, "", _ablation(found), ""]
    text += ["## Targets", "", *_targets(found, _costs(runs)), ""]
    folder = RESULTS / "trust"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trust.md").write_text("\n".join(text), encoding="utf-8")
    kept = {
        "runs": [json.loads(path.read_text()) for name in SETTINGS for path in sorted((runs / name).glob("*.json"))],
        "costs": [json.loads(path.read_text()) for path in sorted(runs.glob("cost-*.json"))],
    }
    KEPT.write_text(json.dumps(kept, indent=0), encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(before + START + comparison(kept["runs"]) + END + rest.partition(END)[2], encoding="utf-8")
    print("\n".join(text))


def comparison(runs: Runs) -> str:
    """CalibratedLoss beside the simple alternatives, in every setting: a Markdown table for the page of results."""
    rows = []
    for name, setting in SETTINGS.items():
        row = [setting.title]
        for method, (_, loss) in SIMPLE.items():
            found = [run for run in runs if run["setting"] == name and run["method"] == method]
            row.append(f"{_mean(found, loss):.3f}, {100 * _mean(found, 'accuracy'):.1f} %" if found else "not run here")
        rows.append(row)
    return markdown(["log loss, accuracy", *(name for name, _ in SIMPLE.values())], rows)


def restore(runs: Path) -> None:
    """Write the runs that the repository keeps to a folder that lacks them, so that they are not repeated."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    files = {path_of(runs, run["setting"], run["method"], run["seed"]): run for run in kept["runs"]}
    files |= {runs / f"cost-{cost['setting']}.json": cost for cost in kept["costs"]}
    for path, content in files.items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _costs(runs: Path) -> dict[str, float]:
    found = [json.loads(path.read_text()) for path in runs.glob("cost-*.json")]
    return {one["setting"]: one["ratio"] for one in found}


def _found(runs: Path, setting: str) -> dict[str, Runs]:
    methods: dict[str, Runs] = {}
    for method in dict.fromkeys([*ORDER, *MAIN, *ABLATIONS, "loop-dropout"]):
        name = method
        if method in SEARCHED:
            candidates = [path_of(runs, setting, f"{method}@{weight:g}", 0) for weight in WEIGHTS]
            if not all(path.exists() for path in [*candidates, path_of(runs, setting, "nll", 0)]):
                continue
            name = f"{method}@{chosen_weight(setting, method, runs):g}"
        paths = sorted((runs / setting).glob(f"{name}-?.json"))
        if paths:
            methods[method] = [json.loads(path.read_text()) for path in paths]
    return methods


def _section(setting: str, methods: dict[str, Runs]) -> list[str]:
    first = next(iter(methods.values()))[0]
    plain = methods.get("nll")
    order = [*ORDER, *(one for one in methods if one not in ORDER)]
    rows = [_row(method, methods[method], plain) for method in order if method in methods]
    chosen = [
        f"{method} λ {methods[method][0]['method'].partition('@')[2]}" for method in SEARCHED if method in methods
    ]
    note = f" Chosen: {', '.join(chosen)}." if chosen else ""
    size = f"{first['held_out_samples']:,} held-out and {first['test_samples']:,} test samples."
    return [f"## {SETTINGS[setting].title}", "", size + note, "", markdown(HEADING, rows), ""]


def _row(method: str, of_method: Runs, plain: Runs | None) -> list[str]:
    apart = statistics.mean(run["held_out_accuracy"] - run["accuracy"] for run in of_method)
    cost = "" if not plain else f"{_mean(of_method, 'seconds') / _mean(plain, 'seconds'):.2f} x"
    return [
        NAMES.get(method, method),
        str(len(of_method)),
        _shown(of_method, "accuracy", 100, 2),
        _shown(of_method, "ece", 100, 2),
        _shown(of_method, "log_loss", 1, 4),
        _shown(of_method, "brier", 1, 4),
        _shown(of_method, "ece_after", 100, 2),
        _shown(of_method, "log_loss_after", 1, 4),
        _shown(of_method, "brier_after", 1, 4),
        f"{100 * apart:+.2f}{'' if _is_chance(of_method) else ' (!)'}",
        cost,
    ]


def _ablation(found: dict[str, dict[str, Runs]]) -> str:
    """The log loss of every row in the settings in which the changes were run."""
    settings = [name for name, methods in found.items() if "loop-every8" in methods]
    rows = []
    for method, change in CHANGES.items():
        score = "log_loss_after" if method in ("nll", "fixed-t") else "log_loss"
        rows.append([change, *(f"{_mean(found[name][method], score):.3f}" for name in settings)])
    return markdown(["", *(SETTINGS[name].title for name in settings)], rows)


def _targets(found: dict[str, dict[str, Runs]], costs: dict[str, float]) -> list[str]:
    """What the defaults must show in every setting, and whether they do."""
    rows, better = [], []
    for setting, methods in found.items():
        if not {"nll", "loop"} <= methods.keys():
            continue
        nll, loop = methods["nll"], methods["loop"]
        ece, plain = _mean(loop, "ece"), _mean(nll, "ece")
        halved = ece <= plain / 2 if plain > 0.01 else ece <= plain + _spread(nll, "ece")
        gain = 100 * (_mean(loop, "accuracy") - _mean(nll, "accuracy"))
        change, error = _paired(loop, nll)
        enough = nll[0]["held_out_samples"] >= 500
        if enough:
            better.append(change < -2 * error)
        cost = costs.get(setting)
        rows.append(
            [
                SETTINGS[setting].title,
                f"{100 * ece:.2f} vs {100 * plain:.2f} {_mark(halved)}",
                f"{gain:+.2f} {_mark(gain >= (2 if SETTINGS[setting].severe else -0.2))}",
                _mark(_mean(loop, "log_loss") < _mean(nll, "log_loss")),
                f"{change:+.4f} ± {error:.4f} {_verdict(change, error) if enough else '(few held out)'}",
                _mark(_is_chance(loop)),
                "not measured" if cost is None else f"{cost:.2f} x {_mark(cost <= 1.15)}",
            ]
        )
    heading = [
        "setting", "ECE % against NLL's: half, or within its spread", "points of accuracy (-0.2; severe: +2)",
        "log loss below NLL's", "log loss less that of NLL + T", "held-out - new accuracy is chance",
        "cost at most 1.15 x",
    ]  # fmt: skip
    share = (
        f"Log loss below that of NLL + T, beyond two standard errors, in {sum(better)} of the {len(better)} settings "
        "with 500 held-out samples or more (target: at least half)."
    )
    marks = "± is the standard error of the mean of the paired differences; ≈: less than two of them from 0."
    logits = {
        setting: max(run.get("largest_logit", 0) for run in methods["loop"])
        for setting, methods in found.items()
        if "loop" in methods
    }
    largest = max(logits, key=lambda setting: logits[setting])
    grown = f"Largest absolute logit before the division by T: {logits[largest]:,.0f} ({SETTINGS[largest].title})."
    return [markdown(heading, rows), "", f"{share} {marks} {grown}"]


def _paired(loop: Runs, nll: Runs) -> tuple[float, float]:
    """Mean over seeds of the loop's log loss less that of NLL + temperature, and its standard error."""
    after = {run["seed"]: run["log_loss_after"] for run in nll}
    apart = [run["log_loss"] - after[run["seed"]] for run in loop if run["seed"] in after]
    return statistics.mean(apart), statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf


def _verdict(change: float, error: float) -> str:
    return "≈" if 0 < change <= 2 * error else _mark(change <= 0)


def _is_chance(of_method: Runs) -> bool:
    """Whether the mean difference of held-out and new accuracy is within 2.6 standard errors of 0 (1 %).

    Seeds share most test samples, whose part of the error a mean over seeds does not make smaller.
    """
    apart = _mean(of_method, "held_out_accuracy") - (p := _mean(of_method, "accuracy"))
    first = of_method[0]
    return abs(apart) <= 2.6 * math.sqrt(
        p * (1 - p) * (1 / (first["held_out_samples"] * len(of_method)) + 1 / first["test_samples"])
    )


def _mean(of_method: Runs, name: str) -> float:
    return float(statistics.mean(run[name] for run in of_method))


def _spread(of_method: Runs, name: str) -> float:
    return statistics.stdev(run[name] for run in of_method) if len(of_method) > 1 else 0.0


def _shown(of_method: Runs, name: str, factor: float, digits: int) -> str:
    return f"{factor * _mean(of_method, name):.{digits}f} ± {factor * _spread(of_method, name):.{digits}f}"


def _mark(kept: bool) -> str:
    return "✓" if kept else "✗"
