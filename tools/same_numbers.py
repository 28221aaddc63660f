"""Record what objectives, metrics and post-hoc methods compute, and compare with a recording.

    python tools/same_numbers.py record numbers.npz     # before a change
    python tools/same_numbers.py compare numbers.npz    # after it; prints what differs, and by how much

Inputs are logits of a network trained on MNIST, random logits, ties, two classes, large logits, and each with weights.
Objectives and metrics may differ by 1e-12 of their size, fitted probabilities by 1e-6.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import calibrant as cal
from calibrant import metrics
from calibrant.metrics.registry import METRICS
from calibrant.posthoc.registry import METHODS

ROOT = Path(__file__).resolve().parent.parent
Numbers = dict[str, NDArray[np.float64]]
CONFIDENCE_OBJECTIVES = ("dca", "ece", "esd", "mmce", "mmce_weighted", "soft_binned_ece")
TESTED = ("ece", "esd", "gap", "ks_error", "smooth_ece", "classwise_ece")
FITTED, PREDICTED = 400, 40


def inputs() -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.int64], NDArray[np.float64] | None]]:
    """Name, logits, target and weights."""
    draw = np.random.default_rng(0)
    stored = np.load(ROOT / "results/mnist/trials-rows-nll.npz")
    name = sorted(key for key in stored if key.endswith("_logits"))[0]
    network = stored[name].astype(np.float64), stored[name.replace("_logits", "_target")].astype(np.int64)
    doubtful = np.argsort(np.sort(network[0], axis=1)[:, -1] - np.sort(network[0], axis=1)[:, -2])[: FITTED + PREDICTED]
    doubtful = draw.permutation(doubtful)
    cases = [("network", network[0][doubtful], network[1][doubtful])]
    for title, classes, scale in (("random", 5, 2.0), ("two classes", 2, 3.0), ("large", 4, 300.0)):
        logits = scale * draw.normal(size=(FITTED + PREDICTED, classes))
        chances = np.exp(logits / (2 * scale / 2.0) - np.logaddexp.reduce(logits / scale, axis=1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        cases.append((title, logits, np.array([draw.choice(classes, p=row) for row in chances])))
    cases.append(("ties", np.round(cases[1][1]), cases[1][2]))
    for title, logits, target in cases:
        yield title, logits, target, None
        yield f"{title}, weighted", logits, target, draw.integers(0, 4, size=len(target)).astype(np.float64)


def numbers() -> Numbers:
    """Everything that is compared, by name."""
    found: Numbers = {}
    for title, logits, target, weight in inputs():
        if weight is None:
            found |= {f"{title}: {name}": value for name, value in _losses(logits, target)}
        found |= {f"{title}: {name}": value for name, value in _objectives(logits, target, weight)}
        found |= {f"{title}: {name}": value for name, value in _metrics(logits, target, weight)}
        found |= {f"{title}: {name}": value for name, value in _fits(logits, target, weight)}
    return found


def _losses(logits: NDArray[Any], target: NDArray[Any]) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name in cal.__all__:
        if name.endswith("Loss"):
            leaf = torch.tensor(logits, requires_grad=True)
            loss = getattr(cal, name)()
            yield from _with_gradient(f"loss {name}", partial(loss, leaf, torch.tensor(target)), leaf)


def _objectives(
    logits: NDArray[Any], target: NDArray[Any], weight: NDArray[Any] | None
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    p = torch.tensor(logits).softmax(1)
    correct = torch.tensor(logits.argmax(1) == target).double()
    given: dict[str, Any] = {} if weight is None else {"sample_weight": torch.tensor(weight)}
    for name in CONFIDENCE_OBJECTIVES:
        leaf = p.amax(1).requires_grad_()
        function = getattr(cal.functional, name)
        try:
            yield from _with_gradient(f"functional.{name}", partial(function, leaf, correct, **given), leaf)
        except TypeError:  # it takes no weights
            continue


def _with_gradient(
    name: str, value: Callable[[], torch.Tensor], leaf: torch.Tensor
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    made = value()
    yield name, made.detach().double().numpy()
    yield f"{name}, gradient", torch.autograd.grad(made, leaf)[0].double().numpy()


def _metrics(
    logits: NDArray[Any], target: NDArray[Any], weight: NDArray[Any] | None
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    given: dict[str, Any] = {} if weight is None else {"sample_weight": weight}
    data = metrics.predictions(logits=logits, target=target, **given)
    functions = {name: getattr(metrics, name) for name in METRICS}
    functions |= {"nll": functions.pop("log_loss"), "ece_guo": partial(metrics.ece, convention="guo")}
    for name, function in functions.items():
        try:
            yield f"metrics.{name}", np.asarray(function(data), dtype=np.float64)
        except ValueError:  # it is for two classes, or takes no weights
            continue
    named: dict[str, Callable[..., Any]] = {
        "ks_test": partial(metrics.closed_form_test, statistic="kolmogorov-smirnov"),
        "kuiper_test": partial(metrics.closed_form_test, statistic="kuiper"),
        "spiegelhalter_test": partial(metrics.closed_form_test, statistic="spiegelhalter"),
        "calibration_line": metrics.calibration_line,
    }
    for name, function in named.items():
        try:
            result = function(data)
        except ValueError:
            continue
        fields = [
            getattr(result, field) for field in ("statistic", "p_value", "slope", "intercept") if hasattr(result, field)
        ]
        yield f"metrics.{name}", np.ravel(np.asarray(fields, dtype=np.float64))
    if weight is None:
        for name in TESTED:
            test = metrics.calibration_test(data, metric=name, draws=200, seed=0)
            yield f"test of {name}", np.array([test.p_value])
            interval = metrics.confidence_interval(data, metric=name, draws=200, seed=0)
            yield f"interval of {name}", np.array([interval.low, interval.high])


def _fits(
    logits: NDArray[Any], target: NDArray[Any], weight: NDArray[Any] | None
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    fit, rest = slice(0, FITTED), slice(FITTED, None)
    given: dict[str, Any] = {} if weight is None else {"sample_weight": weight[fit]}
    for name, kind in METHODS.items():
        try:
            fitted = kind().fit(logits[fit], target[fit], **given)
        except (ValueError, TypeError):
            continue
        yield f"fit {name}", np.asarray(fitted.predict_proba(logits[rest]), dtype=np.float64)


def main() -> int:
    """Record, or compare and return 1 if something differs."""
    action, file = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")
    found = numbers()
    if action == "record":
        np.savez_compressed(file, allow_pickle=False, **found)
        print(f"{len(found)} arrays in {file}")
        return 0
    recorded = np.load(file)
    differs = sorted(recorded.keys() ^ found.keys())
    print(*(f"only in one of the two: {name}" for name in differs), sep="\n")
    for name in sorted(recorded.keys() & found.keys()):
        before, after = recorded[name], found[name]
        size = max(1.0, float(np.nanmax(np.abs(before), initial=0)))
        apart = float(np.nanmax(np.abs(before - after), initial=0)) / size
        if apart > (1e-6 if ": fit " in name else 1e-12) or (np.isnan(before) != np.isnan(after)).any():
            print(f"{apart:9.1e}  {name}")
            differs.append(name)
    print(f"{len(found)} compared, {len(differs)} differ")
    return int(bool(differs))


if __name__ == "__main__":
    sys.exit(main())
