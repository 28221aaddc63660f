"""Recalibrate an existing network on fresh data: only its last layer changes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from calibrant.losses import checks
from calibrant.posthoc import VectorScaling
from calibrant.posthoc.temperature import best_temperature, standard_error, temperature_or_one
from calibrant.torch_private import Convolution
from calibrant.training import forward
from calibrant.training.finishing import looks_trained_on, moved
from calibrant.training.guard import FEWEST_SEEN, SEEN
from calibrant.training.last_layer import can_be_scaled, find_layer, named_layer
from calibrant.training.recalibrations import PENALTIES, Recalibration, Samples, apply, fit_heads, logits_after
from calibrant.training.warning import warn

Method = Literal["nothing", "temperature", "vector", "head"]
FOLDS = 5
# With fewer samples the choice of a method, and every number in the result, is rough.
FEW = 200
NOT_THE_LAYER = "layer {!r} does not make the logits: leave it out, or pass the one that does"


class CrossValidated(NamedTuple):
    """Cross-validated scores of one method.

    Attributes:
        method: Name of the method.
        log_loss: Mean log loss.
        error: Standard error of the log loss.
        change: Mean log loss minus that of the original network.
        change_error: Standard error of the change. It is paired by sample, and so much smaller than ``error``.
        accuracy: Share of correct predictions.
    """

    method: Method
    log_loss: float
    error: float
    change: float
    change_error: float
    accuracy: float


@dataclass(frozen=True)
class Calibrated:
    """Result of :func:`calibrate`.

    Attributes:
        method: Method that was applied; ``"nothing"`` if no change helps.
        temperature: Temperature that the logits were divided by; 1 unless the method is ``"temperature"``.
        penalty: Strength of the pull towards the given weights; None unless the method is ``"head"``.
        samples: Number of samples it was fitted on.
        before: Scores of the original network.
        after: Cross-validated scores of the method.
        candidates: All methods that were tried, simplest first.
    """

    method: Method
    temperature: float
    penalty: float | None
    samples: int
    before: CrossValidated
    after: CrossValidated
    candidates: tuple[CrossValidated, ...]

    def __str__(self) -> str:
        """Table of the methods that were tried, with the chosen one marked."""
        detail = {"temperature": f" {self.temperature:.3g}", "head": f" (penalty {self.penalty})"}.get(self.method, "")
        lines = [
            f"changed: {self.method}{detail}; {self.samples:,} samples, {FOLDS}-fold cross-validation",
            f"{'':13}{'log loss':>17}{'change':>19}{'accuracy':>10}",
        ]
        for one in self.candidates:
            change = "" if one.method == "nothing" else f"{one.change:+.4f} ± {one.change_error:.4f}"
            log_loss = f"{one.log_loss:.4f} ± {one.error:.4f}"
            mark = "*" if one.method == self.method else " "
            lines.append(f"{mark} {one.method:11}{log_loss:>17}{change:>19}{one.accuracy:>10.2%}")
        return "\n".join(lines)


@torch.no_grad()
def calibrate(
    model: nn.Module, loader: Iterable[Any], *, layer: str | nn.Module | None = None,
    method: Literal["auto", "temperature", "vector", "head"] = "auto", ignore_index: int = -100, seed: int = 0,
) -> Calibrated:  # fmt: skip
    """Recalibrate a trained network in place, on data that it has not seen.

    The network runs once over the data, in evaluation mode. Then only its last layer is changed:

    - ``"temperature"``: the layer is divided by the exact best temperature. No prediction changes.
    - ``"vector"``: a scale and a bias for each class.
    - ``"head"``: all weights of the layer are fitted, with a penalty that pulls towards the given weights divided by
      the temperature. Cross-validation chooses the penalty.
    - ``"auto"``: the simplest option (no change, or one of these three) whose cross-validated log loss is within one
      standard error of the lowest. The standard error is that of the difference, paired by sample.

    If a change does not lower the cross-validated log loss, the model is left as it is and a
    :class:`CalibrationWarning` says so. Where no temperature is best, for example because predictions are no better
    than chance, ``"temperature"`` and ``"head"`` leave the model as it is too, and ``"auto"`` only tries ``"vector"``;
    a warning says why. A model whose logits are not the output of a linear layer can only be scaled,
    see :func:`scale_output`. The result is deterministic. Use it in one process, before the model is wrapped for
    distributed training.

    Args:
        model: Model that returns logits, or an object with ``.logits``.
        loader: Batches ``(x, y)`` of fresh labelled data: neither training data nor test data.
        layer: The layer that makes the logits, as a module or by name; found when not given.
        method: Method to apply, one of the above.
        ignore_index: Label of samples to ignore.
        seed: Seed of the folds.

    Returns:
        The method, its temperature, and cross-validated log loss and accuracy before and after.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(1000, 4, generator=generator)
        >>> y = torch.multinomial(x.softmax(1), 1, generator=generator).squeeze(1)
        >>> model = nn.Linear(4, 4, bias=False)
        >>> _ = model.weight.data.copy_(3 * torch.eye(4))  # over-confident: logits times 3
        >>> result = calibrate(model, [(x, y)])
        >>> result.method, round(result.temperature)
        ('temperature', 3)
    """
    checks.check_choice("method", method, ("auto", "temperature", "vector", "head"))
    if isinstance(loader, Dataset):
        raise TypeError("calibrate() takes batches, got a data set: pass a DataLoader of it")
    samples, found = _predict(model, loader, None if layer is None else named_layer(model, layer), ignore_index)
    if isinstance(found, nn.Linear) and can_be_scaled(model, found) and samples.features is None:
        raise ValueError(NOT_THE_LAYER.format(layer))
    if method in ("vector", "head") and samples.features is None:
        raise ValueError(
            f"method {method!r} changes the linear layer that makes the logits, and this model has none that can be "
            "changed alone: use method='temperature'"
        )
    if len(samples.target) < 2 * FOLDS:
        raise ValueError(f"calibrating needs at least {2 * FOLDS} samples, got {len(samples.target)}: pass more data")
    _warn_of_data(samples)
    wanted: tuple[Method, ...] = ("temperature", "vector", "head") if method == "auto" else (method,)
    absent = samples.logits.shape[1] - len(samples.target.unique())
    if absent and samples.features is not None and method != "temperature":
        warn(
            f"{absent} of {samples.logits.shape[1]} classes have no sample, and methods 'vector' and 'head' would rule "
            f"them out: {'only a temperature is tried' if method == 'auto' else 'pass samples of every class'}"
        )
    wanted = ("temperature",) if samples.features is None or (absent and method == "auto") else wanted
    if no_temperature := _why_no_temperature(samples):
        wanted = tuple(name for name in wanted if name == "vector")  # the head is pulled towards weights divided by T
        done = "only 'vector' can be tried" if wanted else "the model is left as it is"
        warn(f"{done}: {no_temperature}")
    linear = found if isinstance(found, nn.Linear) else None
    losses, right, penalty = _cross_validate(samples, linear, wanted, seed)
    candidates = tuple(_measured(name, losses, right) for name in losses)
    chosen = _simplest(losses) if method == "auto" else method
    if chosen not in losses or losses[chosen].mean() >= losses["nothing"].mean():
        chosen = "nothing"
    temperature = 1.0
    if chosen == "nothing" and wanted:
        warn(
            f"no change lowers the cross-validated log loss on {len(samples.target)} samples beyond chance, so the "
            "model is left as it is: either it is calibrated, or there are too few samples to tell"
        )
    if chosen != "nothing":
        change = _fit(chosen, samples, linear, penalty)
        apply(change, model, found)
        temperature = change if isinstance(change, float) else 1.0
    after = next(one for one in candidates if one.method == chosen)
    kept = penalty if chosen == "head" else None
    return Calibrated(chosen, temperature, kept, len(samples.target), candidates[0], after, candidates)


def _predict(
    model: nn.Module, loader: Iterable[Any], layer: nn.Module | None, ignore_index: int
) -> tuple[Samples, nn.Module | None]:
    """One pass in evaluation mode: logits, labels, and the inputs of the layer that makes the logits."""
    device = forward.device_of(model)
    parts: list[Samples] = []
    seen: list[Tensor] = []
    hook = None
    with forward.evaluating(model):
        try:
            for batch in loader:
                x, y = moved(batch, device)
                if not parts:
                    maker = find_layer(model, lambda x=x: forward.logits_of(model, x))  # type: ignore[misc]
                    if isinstance(layer, Convolution) and can_be_scaled(model, layer) and layer is not maker:
                        raise ValueError(NOT_THE_LAYER.format(layer))
                    layer = layer or maker
                    if layer is not None:
                        hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
                seen.clear()
                data = forward.flattened(forward.logits_of(model, x), y, ignore_index=ignore_index)
                features = _features(model, layer, seen, data.logits)
                part = Samples(data.logits.cpu(), data.target.cpu(), None if features is None else features.cpu())
                parts.append(part if data.mask is None else part.take(data.mask.cpu()))
        finally:
            if hook is not None:
                hook.remove()
    if not parts:
        raise ValueError("the loader gave no batch: pass batches (x, y)")
    logits, targets, inputs_of_layer = zip(*parts, strict=True)
    made = None if any(each is None for each in inputs_of_layer) else torch.cat(inputs_of_layer)
    return Samples(torch.cat(logits), torch.cat(targets), made), layer


def _features(model: nn.Module, layer: nn.Module | None, seen: list[Tensor], logits: Tensor) -> Tensor | None:
    """Inputs of the linear layer that makes the logits, or None if none does."""
    if not isinstance(layer, nn.Linear) or not can_be_scaled(model, layer) or not seen:
        return None
    features = seen[-1].reshape(-1, layer.in_features).float()
    made = F.linear(features, layer.weight.float(), None if layer.bias is None else layer.bias.float())
    if len(made) != len(logits) or layer.out_features not in (logits.shape[1], 1):
        return None
    given = logits[:, 1:] if layer.out_features == 1 else logits
    # float16 and bfloat16 round; a layer that does not make the logits is off by far more.
    near = 0.02 * max(1.0, float(given.abs().max())) if len(given) else 0.0
    counts = (given - made).abs().amax(1) <= near
    return features if bool((counts | (given == 0).all(1)).all()) else None


def _warn_of_data(samples: Samples) -> None:
    count = len(samples.target)
    accuracy = float((samples.logits.argmax(1) == samples.target).double().mean())
    if count >= FEWEST_SEEN and accuracy >= SEEN:
        warn(
            f"the network is right on {accuracy:.1%} of these {count} samples: it was probably trained on them, and "
            "scores on training data are too good. Pass fresh data"
        )
    else:
        temperature = temperature_or_one(samples.logits, samples.target)
        error = standard_error(samples.logits, samples.target, math.log(temperature))
        if looks_trained_on(math.log(temperature), error, accuracy):
            warn(
                f"the network is right on {accuracy:.1%} of these {count} samples, and yet they ask for a temperature "
                f"of {temperature:.2g}, more confidence: samples it was trained on do, and then it becomes "
                "over-confident on new data. Pass data that no training has seen; ignore this after brief training or "
                "label smoothing"
            )
    if forward.looks_like_probabilities(samples.logits):
        warn(forward.PROBABILITIES)
    if count < FEW:
        warn(f"{count} samples are few: pass {FEW} or more, and check the standard errors of the result")


def _why_no_temperature(samples: Samples) -> str:
    """Reason why no temperature is best on all samples, empty if one is. Parts of the samples may have one."""
    try:
        best_temperature(samples.logits, samples.target)
    except ValueError as error:
        return str(error)
    return ""


def _cross_validate(
    samples: Samples, layer: nn.Linear | None, methods: tuple[Method, ...], seed: int
) -> tuple[dict[Method, Tensor], dict[Method, Tensor], float | None]:
    """Log loss and correctness of every sample under fits that did not see it, and the best penalty of the head."""
    count = len(samples.target)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    folds = order.tensor_split(FOLDS)
    losses: dict[Method, Tensor] = {name: torch.empty(count).double() for name in ("nothing", *methods)}
    right: dict[Method, Tensor] = {name: torch.empty(count).bool() for name in losses}
    paths: list[list[Tensor]] = []  # for each fold, logits under each penalty
    for place, fold in enumerate(folds):
        rest = samples.take(torch.cat([other for index, other in enumerate(folds) if index != place]))
        new = samples.take(fold)
        for name in losses:
            if name == "head":
                assert layer is not None  # noqa: S101 (a head needs one)
                paths.append([logits_after(head, new) for head in fit_heads(rest, layer)])
            else:
                logits = logits_after(_fit(name, rest, layer, None), new)
                _judge(losses[name], right[name], fold, logits, new.target)
    if "head" not in losses:
        return losses, right, None
    totals = torch.tensor([[float(F.cross_entropy(logits, samples.target[fold], reduction="sum")) for logits in path]
                           for path, fold in zip(paths, folds, strict=True)])  # fmt: skip
    for place, fold in enumerate(folds):
        # The penalty of a fold is chosen on the other folds: the lowest of several losses would be optimistic.
        best = int((totals.sum(0) - totals[place]).argmin())
        _judge(losses["head"], right["head"], fold, paths[place][best], samples.target[fold])
    return losses, right, PENALTIES[int(totals.sum(0).argmin())]


def _judge(losses: Tensor, right: Tensor, fold: Tensor, logits: Tensor, target: Tensor) -> None:
    losses[fold] = F.cross_entropy(logits.double(), target, reduction="none")
    right[fold] = logits.argmax(1) == target


def _fit(method: Method, samples: Samples, layer: nn.Linear | None, penalty: float | None) -> Recalibration:
    if method == "nothing":
        return 1.0
    if method == "temperature":
        return temperature_or_one(samples.logits, samples.target)
    if method == "vector":
        return VectorScaling(strict=True).fit(samples.logits, samples.target)
    assert layer is not None and penalty is not None  # noqa: S101, PT018 (a head needs both)
    return list(fit_heads(samples, layer, [value for value in PENALTIES if value >= penalty]))[-1]


def _simplest(losses: dict[Method, Tensor]) -> Method:
    """The simplest method that is within one standard error of the best."""
    best = min(losses, key=lambda name: float(losses[name].mean()))
    for name, values in losses.items():
        gap = values - losses[best]
        if float(gap.mean()) <= _standard_error(gap):
            return name
    return best


def _measured(method: Method, losses: dict[Method, Tensor], right: dict[Method, Tensor]) -> CrossValidated:
    values, change = losses[method], losses[method] - losses["nothing"]
    return CrossValidated(
        method, float(values.mean()), _standard_error(values), float(change.mean()), _standard_error(change),
        float(right[method].double().mean()),
    )  # fmt: skip


def _standard_error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))
