"""Recalibrate an existing network on fresh data: only its output layer changes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant import inputs
from calibrant.posthoc.fit import HeldOut
from calibrant.posthoc.scaling import best_temperature, standard_error, temperature_or_one
from calibrant.posthoc.solvers import Correction, Penalty, fit_affine
from calibrant.training.forward import batches_for, evaluating, flattened, logits_of
from calibrant.training.guard import FEWEST_SEEN, PROBABILITIES, SEEN, look_like_probabilities, warn
from calibrant.training.output_layer import arguments_of, can_be_scaled, divide, find_output
from calibrant.training.temperature_loop import looks_trained_on

Candidate = Literal["nothing", "temperature", "vector", "head"]
FOLDS = 5
# With fewer samples the choice of a method, and every number in the result, is rough.
FEW = 200
# Penalties of the head, the strongest first. They are relative to the mean NLL, with features of mean square 1.
PENALTIES = (1.0, 0.1, 0.01, 1e-3, 1e-4)
# Penalty on scales and shifts: too weak to change a fit, unless the likelihood has no maximum.
PULL = 5e-9


class Outputs(NamedTuple):
    """Logits of a network on labelled data, on the CPU, and what its output layer made them from."""

    logits: Tensor
    target: Tensor
    features: Tensor | None  # None where no linear layer makes the logits

    def take(self, rows: Tensor) -> "Outputs":
        """Some of the samples."""
        features = None if self.features is None else self.features[rows]
        return Outputs(self.logits[rows], self.target[rows], features)


class Head(NamedTuple):
    """New weights of the output layer."""

    weight: Tensor
    bias: Tensor


Recalibration = float | Head  # the float is a temperature


class CrossValidated(NamedTuple):
    """Cross-validated scores of one method, with the standard error of its mean log loss.

    The change is from the original network. Its standard error is paired by sample, and so much smaller.
    """

    method: Candidate
    log_loss: float
    error: float
    change: float
    change_error: float
    accuracy: float


@dataclass(frozen=True)
class FineTuned:
    """Result of :func:`finetune`; it prints as a table of the methods that were tried.

    Attributes:
        method: Method that was applied; ``"nothing"`` if no change helps.
        temperature: What the logits were divided by; 1 unless the method is ``"temperature"``.
        penalty: Strength of the pull towards the given weights; None unless the method is ``"head"``.
        samples: Number of samples it was fitted on.
        before: Scores of the original network.
        after: Cross-validated scores of the method.
        candidates: All methods that were tried, simplest first.
    """

    method: Candidate
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
def finetune(
    model: nn.Module, loader: Iterable[Any], *, method: Literal["auto", "temperature", "vector", "head"] = "auto",
    ignore_index: int = -100, seed: int = 0,
) -> FineTuned:  # fmt: skip
    """Recalibrate a trained network in place, on data that it has not seen.

    Only its output layer is changed, if that lowers the cross-validated log loss; ``docs/finetuning.md`` has more. Use
    it in one process, before the model is wrapped for distributed training.

    Args:
        model: Model that returns logits, or an object with ``.logits``.
        loader: Batches ``(x, y)`` of fresh labelled data: neither training data nor test data.
        method: ``"temperature"`` divides the layer by the best temperature; ``"vector"`` fits a scale and a bias for
            each class; ``"head"`` all weights of the layer, with a penalty that cross-validation chooses; ``"auto"``
            takes the simplest, no change included, whose log loss is within one standard error of the lowest. Logits
            that no linear layer makes can only be divided.
        ignore_index: Label of samples to ignore.
        seed: Seed of the folds.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(1000, 4, generator=generator)
        >>> y = torch.multinomial(x.softmax(1), 1, generator=generator).squeeze(1)
        >>> model = nn.Linear(4, 4, bias=False)
        >>> _ = model.weight.data.copy_(3 * torch.eye(4))  # over-confident: logits times 3
        >>> result = finetune(model, [(x, y)])
        >>> result.method, round(result.temperature)
        ('temperature', 3)
    """
    inputs.check_choice("method", method, ("auto", "temperature", "vector", "head"))
    samples, found = _predict(model, loader, ignore_index)
    if method in ("vector", "head") and samples.features is None:
        raise ValueError(
            f"method {method!r} changes the linear layer that makes the logits, and this model has none that can be "
            "changed alone: use method='temperature'"
        )
    if len(samples.target) < 2 * FOLDS:
        raise ValueError(f"recalibrating needs at least {2 * FOLDS} samples, got {len(samples.target)}: pass more data")
    no_temperature = _warn_of_data(samples)
    wanted: tuple[Candidate, ...] = ("temperature", "vector", "head") if method == "auto" else (method,)
    absent = samples.logits.shape[1] - len(samples.target.unique())
    if absent and samples.features is not None and method != "temperature":
        warn(
            f"{absent} of {samples.logits.shape[1]} classes have no sample, and methods 'vector' and 'head' would rule "
            f"them out: {'only a temperature is tried' if method == 'auto' else 'pass samples of every class'}"
        )
    wanted = ("temperature",) if samples.features is None or (absent and method == "auto") else wanted
    if no_temperature:
        wanted = tuple(name for name in wanted if name == "vector")  # the head is pulled towards weights divided by T
        done = "only 'vector' can be tried" if wanted else "the model is left as it is"
        warn(f"{done}: {no_temperature}")
    logits, penalty = _cross_fitted(samples, found, wanted, seed)
    losses = {name: F.cross_entropy(fitted, samples.target, reduction="none") for name, fitted in logits.items()}
    candidates = tuple(_measured(name, losses, logits[name], samples.target) for name in losses)
    chosen = _simplest(losses) if method == "auto" else method
    if chosen not in losses or losses[chosen].mean() >= losses["nothing"].mean():
        chosen = "nothing"
    if chosen == "nothing" and wanted:
        warn(
            f"no change lowers the cross-validated log loss on {len(samples.target)} samples beyond chance, so the "
            "model is left as it is: either it is calibrated, or there are too few samples to tell"
        )
    kept = penalty if chosen == "head" else None
    change = _fit(chosen, samples, found, kept)
    if chosen != "nothing":
        _apply(change, model, found)
    temperature = change if isinstance(change, float) else 1.0
    after = next(one for one in candidates if one.method == chosen)
    return FineTuned(chosen, temperature, kept, len(samples.target), candidates[0], after, candidates)


def _predict(model: nn.Module, loader: Iterable[Any], ignore_index: int) -> tuple[Outputs, nn.Module]:
    """One pass in evaluation mode: logits, labels, and the inputs of the layer that makes the logits."""
    parts: list[Outputs] = []
    with evaluating(model):
        for x, y, weight in batches_for(model, loader, "finetune"):
            if weight is not None:
                raise TypeError("finetune() takes batches (inputs, target), without weights")
            if not parts:
                layer = find_output(model, x)
            with arguments_of(layer) as seen:
                data = flattened(logits_of(model, x), y, ignore_index=ignore_index)
            features = None
            if isinstance(layer, nn.Linear) and can_be_scaled(model, layer):
                features = seen[-1][0].reshape(-1, layer.in_features).float().cpu()
            part = Outputs(data.logits.cpu(), data.target.cpu(), features)
            parts.append(part if data.mask is None else part.take(data.mask.cpu()))
    logits, targets, features_of = zip(*parts, strict=True)
    made = None if features_of[0] is None else torch.cat(features_of)
    return Outputs(torch.cat(logits), torch.cat(targets), made), layer


def _warn_of_data(samples: Outputs) -> str:
    """Warn about unsuitable samples, and return why no temperature is best on all of them, empty if one is."""
    count = len(samples.target)
    accuracy = float((samples.logits.argmax(1) == samples.target).double().mean())
    temperature, no_temperature = 1.0, ""
    try:
        temperature = best_temperature(samples.logits, samples.target)
    except ValueError as problem:
        no_temperature = str(problem)
    error = standard_error(samples.logits, samples.target, math.log(temperature))
    if count >= FEWEST_SEEN and accuracy >= SEEN:
        warn(
            f"the network is right on {accuracy:.1%} of these {count} samples: it was probably trained on them, and "
            "scores on training data are too good. Pass fresh data"
        )
    elif looks_trained_on(math.log(temperature), error, accuracy):
        warn(
            f"the network is right on {accuracy:.1%} of these {count} samples, and yet they ask for a temperature of "
            f"{temperature:.2g}, more confidence: samples it was trained on do, and then it becomes over-confident on "
            "new data. Pass data that no training has seen; ignore this after brief training or label smoothing"
        )
    if look_like_probabilities(samples.logits):
        warn(PROBABILITIES)
    if count < FEW:
        warn(f"{count} samples are few: pass {FEW} or more, and check the standard errors of the result")
    return no_temperature


def _cross_fitted(
    samples: Outputs, layer: Any, methods: tuple[Candidate, ...], seed: int
) -> tuple[dict[Candidate, Tensor], float | None]:
    """Logits of every sample under fits that did not see it, and the best penalty of the head."""
    order = torch.randperm(len(samples.target), generator=torch.Generator().manual_seed(seed))
    folds = order.tensor_split(FOLDS)
    given = samples.logits.double()
    fitted: dict[Candidate, Tensor] = {name: given.clone() for name in ("nothing", *methods)}
    heads = given.expand(len(PENALTIES), *given.shape).clone() if "head" in methods else given.new_empty(0)
    for fold in folds:
        rest = samples.take(torch.cat([other for other in folds if other is not fold]))
        new = samples.take(fold)
        for name in methods:
            if name == "head":
                heads[:, fold] = torch.stack([logits_after(head, new) for head in fit_heads(rest, layer)])
            else:
                fitted[name][fold] = logits_after(_fit(name, rest, layer, None), new)
    if "head" not in methods:
        return fitted, None
    losses = torch.stack([F.cross_entropy(each, samples.target, reduction="none") for each in heads])
    for fold in folds:
        # The penalty of a fold is chosen on the other folds: the lowest of several losses would be optimistic.
        best = int((losses.sum(1) - losses[:, fold].sum(1)).argmin())
        fitted["head"][fold] = heads[best, fold]
    return fitted, PENALTIES[int(losses.sum(1).argmin())]


def _fit(method: Candidate, samples: Outputs, layer: Any, penalty: float | None) -> Recalibration:
    if method == "nothing":
        return 1.0
    if method == "temperature":
        return temperature_or_one(samples.logits, samples.target)
    if method == "vector":
        return _fit_vector(samples, layer)
    assert penalty is not None  # noqa: S101 (the head has one)
    return list(fit_heads(samples, layer, [value for value in PENALTIES if value >= penalty]))[-1]


def _fit_vector(samples: Outputs, layer: nn.Linear) -> Head:
    """The layer after the scale and the shift of each class that minimise the NLL."""
    logits, target = samples.logits.double(), samples.target
    classes = logits.shape[1]
    start = Correction(np.full(classes, 1 / temperature_or_one(logits, target) - 1), np.zeros(classes))
    data = HeldOut(logits.numpy(), target.numpy(), None)
    found = fit_affine(data, Penalty(0.0, PULL / classes, PULL / classes), start)
    scale, shift = torch.from_numpy(1 + found.matrix), torch.from_numpy(found.shift - found.shift.mean())
    if layer.out_features == 1:  # the logit of class 0 is 0 before, and its shift is subtracted after
        scale, shift = scale[1:], shift[1:] - shift[:1]
    weight, bias = _weights_of(layer)
    return Head(weight * scale.unsqueeze(1), bias * scale + shift)


def _weights_of(layer: nn.Linear) -> Head:
    """Weights and bias of a layer, in float64 on the CPU."""
    weight = layer.weight.detach().cpu().double()
    return Head(weight, weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().cpu().double())


def fit_heads(samples: Outputs, layer: nn.Linear, penalties: Sequence[float] = PENALTIES) -> Iterator[Head]:
    """Fit the output layer by the penalised NLL, see ``docs/finetuning.md``, once for each penalty, strong to weak."""
    assert samples.features is not None  # noqa: S101 (checked by the caller)
    features = samples.features.double()
    temperature = temperature_or_one(samples.logits, samples.target)
    first, bias = (part / temperature for part in _weights_of(layer))
    sizes = features.square().mean(0).sqrt()
    sizes = sizes.clamp_min(1e-6 * float(sizes.max())).clamp_min(1e-12)
    scaled = features / sizes
    given = features @ first.T + bias
    change = torch.zeros(first.numel() + len(first), dtype=torch.float64)

    def penalised(change: Tensor, penalty: float) -> Tensor:
        weight, shift = change[: -len(first)].view_as(first), change[-len(first) :]
        logits = given + scaled @ weight.T + shift
        if len(first) == 1:
            logits = torch.cat((torch.zeros_like(logits), logits), 1)
        return F.cross_entropy(logits, samples.target) + penalty / 2 * (change @ change)

    for penalty in penalties:
        change = _minimised(partial(penalised, penalty=penalty), change)
        yield Head(first + change[: -len(first)].view_as(first) / sizes, bias + change[-len(first) :])


def _minimised(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Where a smooth convex function is lowest."""
    position = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [position], max_iter=1000, history_size=20, tolerance_grad=1e-5, tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(position)
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(closure)
    if not position.isfinite().all():
        raise ValueError(
            "the likelihood of the held-out logits overflows: scale the logits to a sensible range, or leave out "
            "samples with huge logits"
        )
    return position.detach()


def logits_after(change: Recalibration, samples: Outputs) -> Tensor:
    """New logits of samples."""
    if isinstance(change, float):
        return samples.logits.double() / change
    assert samples.features is not None  # noqa: S101 (the head was fitted on features)
    made = samples.features.double() @ change.weight.T + change.bias
    return torch.cat((torch.zeros_like(made), made), 1) if made.shape[1] == 1 else made


def _apply(change: Recalibration, model: nn.Module, layer: nn.Module) -> None:
    """Change the model's output layer, which may get a bias, or scale its output if no layer can be changed."""
    if isinstance(change, float):
        divide(model, layer, change)
        return
    assert isinstance(layer, nn.Linear)  # noqa: S101 (features are there only with such a layer)
    layer.weight.copy_(change.weight)
    if layer.bias is None:
        layer.bias = nn.Parameter(change.bias.to(layer.weight), requires_grad=layer.weight.requires_grad)
    else:
        layer.bias.copy_(change.bias)


def _simplest(losses: dict[Candidate, Tensor]) -> Candidate:
    """The simplest method that is within one standard error of the best."""
    best = min(losses, key=lambda name: float(losses[name].mean()))
    for name, values in losses.items():
        gap = values - losses[best]
        if float(gap.mean()) <= _standard_error(gap):
            return name
    return best


def _measured(method: Candidate, losses: dict[Candidate, Tensor], logits: Tensor, target: Tensor) -> CrossValidated:
    values = losses[method]
    change = values - losses["nothing"]
    return CrossValidated(
        method, float(values.mean()), _standard_error(values), float(change.mean()), _standard_error(change),
        float((logits.argmax(1) == target).double().mean()),
    )  # fmt: skip


def _standard_error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))
