"""Warnings of calibrated training: the guard that measures batches as they pass, and the reminder of ``finish``."""

import copy
import math
import sys
import warnings
from collections.abc import Mapping, Sized
from operator import length_hint
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.losses.checks import Classification
from calibrant.training.forward import BatchScores, ScoreSums

if TYPE_CHECKING:
    from calibrant.training.temperature_loop import TemperatureLoop

# A warning located in a framework would be silenced with the framework's own.
PASSED_OVER = ("calibrant", "torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
# Training batches that are judged together.
WINDOW = 50
# Differences of this many standard errors are not chance: about 1 in 2,000 windows of a sound run.
BEYOND_CHANCE = 3.5
# Held-out accuracy in the first steps from which on the network has probably seen the samples, samples needed, and the
# ratio of their doubt to that of training samples above which they are new data of an easy task all the same.
SEEN, FEWEST_SEEN, NEW = 0.99, 256, 3.0
# Pull of the objective on the logits above which it leads the training, relative to that of the training loss at its
# strongest or, if larger, to that of the NLL on the held-out samples. results/guard.md measures both ratios.
OUTWEIGHS = 1.0
# Held-out batches with a gradient that a judgement of the pull needs, and values that one of silence needs.
FEWEST_PULLS, FEWEST_OBJECTIVES = 10, 25
# Held-out log loss of a window, relative to that of training batches, above which held-out samples are not trained on.
APART = 1.2
# Points of training accuracy below the best window that are a collapse.
COLLAPSE = 0.05
# Points of accuracy in `finish` above the best window of held-out batches that are those of other data.
RISE = 0.1
# Steps of training, and log T, from which on a forgotten finish() matters although the training loss is at T = 1.
FEWEST_STEPS, NEAR_ONE = 100, 0.1
# Relative change of the output layer since finish() that is more than rounding to another precision.
NOTICED = 0.005
PROBABILITIES = (
    "the model's outputs look like probabilities or log-probabilities: remove the softmax, sigmoid or log-softmax at "
    "its end, since the loss takes logits"
)
GO_BACK = "load the weights of an earlier checkpoint, or train again with a lower learning rate"


class CalibrationWarning(UserWarning):
    """Calibrated training does not work as intended."""


def place_of_call() -> tuple[str, int, str]:
    """File, line and module where the user's program calls this package."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_OVER:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "")


def warn(message: str, place: tuple[str, int, str] | None = None) -> None:
    """Give a :class:`CalibrationWarning`, located where the user's program calls this package."""
    file, line, module = place or place_of_call()
    # Python shows equal texts of a line once; with a new registry a second model with the same problem is reported too.
    warnings.warn_explicit(message, CalibrationWarning, file, line, module, registry={})


def look_like_probabilities(logits: Tensor, *, of_one: bool = True) -> bool:
    """Whether ``(N, C)`` logits of a batch are probabilities, or their logarithms, which T would divide in vain."""
    return inputs.looks_like_probabilities(logits.detach().cpu().double().numpy(), of_one=of_one, logs=True)


class Reminder:
    """Reminds the user of ``finish()`` when a loss is gone and logits are not divided by its temperature."""

    def __init__(self, loop: "TemperatureLoop") -> None:
        self.on = True
        self.steps = 0  # of training since finish()
        self._place = place_of_call()
        self._loop = loop
        self._divided: Tensor | None = None
        self._norm = 0.0

    def keep(self, weights: Tensor | None) -> None:
        """Keep the weights that ``finish()`` divided, or forget them."""
        self._divided = weights
        self._norm = 0.0 if weights is None else _norm(weights)

    def have_changed(self) -> bool | None:
        """Whether these weights were loaded or trained since; None if there are none."""
        if self._divided is None:
            return None
        return not math.isclose(_norm(self._divided), self._norm, rel_tol=NOTICED)

    def tell(self) -> None:
        """Warn if ``finish()`` is missing, or its result was replaced."""
        temperature = self._loop.temperature
        if temperature == 1 and self.steps >= FEWEST_STEPS and abs(math.log(self._loop.best)) > NEAR_ONE:
            temperature = self._loop.best
        if self.on and self.steps and temperature != 1:
            warn(
                f"training ended without finish(): the model's logits are not divided by the temperature of held-out "
                f"data, {temperature:.3g}, and are {'over' if temperature > 1 else 'under'}-confident. Call "
                "finish(held_out_loader) on the loss",
                self._place,
            )
        elif self.on and self.have_changed():
            warn(
                "the model's weights have changed since finish(): weights saved before it are not divided by the "
                "temperature. Load weights saved after it, or call finish(held_out_loader) again",
                self._place,
            )


def _norm(weights: Tensor) -> float:
    local = getattr(weights, "to_local", weights.detach)()  # the part of this process, if it is sharded
    return float(torch.linalg.vector_norm(local.float()))


class Guard:
    """Judges windows of training batches with the held-out batches beside them, and the final network.

    Every warning is a :class:`CalibrationWarning`, is given once, says what to do, and is kept in ``warnings_``.
    """

    def __init__(self, *, has_objective: bool = True) -> None:
        self.has_objective = has_objective
        self.warnings_: dict[str, str] = {}
        self.latest: dict[str, float] = {}  # scores of the last window
        self.training, self.held_out = ScoreSums(), ScoreSums()
        self._windows = self._of_window = 0  # windows, and training batches of this one
        self._best: dict[str, tuple[float, float]] = {}  # best accuracy of a window and its deviation
        self._strongest = 0.0
        self._accuracy = 0.0  # of the last validation
        self._was_compared = False
        self._is_apart = False
        self._is_start = True
        self._pulls: dict[str, list[Tensor]] = {"loss": [], "objective": []}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def add_training(self, data: Classification) -> None:
        """Add a training batch, and judge the window before it if that is full."""
        if self._of_window >= WINDOW:
            self.close_window()
        self.training.add(data)
        self._of_window += 1

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def add_held_out(self, data: Classification) -> None:
        """Add a held-out batch, before the network has learned anything from it."""
        self.held_out.add(data)
        self._is_start &= self._windows == 0
        if self._is_start:
            self._judge_start()

    def _judge_start(self) -> None:
        scores, training = self.held_out.running(), self.training.running()
        if scores.samples < FEWEST_SEEN or not training.samples:
            return
        self._is_start = False
        if scores.accuracy >= SEEN and scores.doubt <= NEW * training.doubt + 1 / scores.samples:
            self.warn(
                "seen",
                f"the network is right on {scores.accuracy:.1%} of the first {scores.samples:.0f} held-out samples: it "
                "has probably seen them in an earlier training. Hold out samples that no training has seen",
            )

    def watch(self, logits: Tensor, of: str) -> None:
        """Note, in the coming backward pass, how hard the training loss or the objective pulls at its logits."""
        # Compiled code does not take hooks on tensors within it.
        if logits.requires_grad and not torch.compiler.is_compiling():
            pulls = self._pulls[of]
            logits.register_hook(lambda gradient: pulls.append(gradient.detach().abs().sum(dtype=torch.float32)))

    def close_window(self) -> dict[str, float]:
        """Judge what passed since the last window, on all ranks, begin a new one, and return its scores."""
        training, held_out = self.training.since("window"), self.held_out.since("window")
        self.latest = _named(held_out)
        if training.samples:
            self._judge_accuracy(training, held_out)
        if min(training.samples, held_out.samples) >= FEWEST_SEEN:
            self._is_apart = held_out.nll > APART * training.nll
        # An objective without a root may be negative, and has a gradient there.
        if held_out.values >= FEWEST_OBJECTIVES and held_out.silent == 1:
            self.warn(
                "silent",
                f"the objective was 0 on all of the last {held_out.values:.0f} held-out batches and did nothing: use "
                "larger held-out batches, or leave it out if the network is calibrated",
            )
        if training.samples and held_out.samples and all(self._pulls.values()):
            self._judge_pull(training, held_out)
        self._windows, self._of_window = self._windows + 1, 0
        self._pulls = {"loss": [], "objective": []}
        return self.latest

    def _judge_accuracy(self, training: BatchScores, held_out: BatchScores) -> None:
        before = self._best.get("training", (0.0, 0.0))[0]
        fell = self._fell("training", training)
        if held_out.samples:
            held_out_fell = self._fell("held_out", held_out)
            # A temperature that undoes overfitting may lower training accuracy alone.
            fell = fell and (held_out_fell or self.has_objective)
        if fell:
            text = f"training accuracy fell from {before:.1%} to {training.accuracy:.1%}: lower the learning rate"
            self.warn("collapse", text + self._lower_weight())

    def judge_final(self, held_out: BatchScores) -> None:
        """Compare the final network with the best window: its last steps are the average of no window."""
        before, deviation = self._best.get("held_out", (1.0, 0.0))
        rise = held_out.accuracy - before
        # A network may learn as much within its first window.
        if self._windows > 1 and rise > max(RISE, BEYOND_CHANCE * math.hypot(held_out.deviation, deviation)):
            self.warn(
                "other data",
                f"accuracy is {held_out.accuracy:.1%} on the data of finish(), and was at most {before:.1%} on "
                "held-out batches in training: pass finish() the held-out data, not the training data",
            )
        if self._fell("held_out", held_out):
            self.warn(
                "fell",
                f"held-out accuracy was {before:.1%} at its best and is {held_out.accuracy:.1%} with the final network"
                ": let the learning rate fall to 0, stop earlier (see StopAfterTemperature), or lower the learning rate"
                + self._lower_weight(),
            )

    def _lower_weight(self) -> str:
        if not self.has_objective:
            return ""
        return " or the weight of the objective, or use CalibratedLoss(model), which has no weight"

    def _fell(self, name: str, scores: BatchScores) -> bool:
        """Whether accuracy is below that of the best window by more than chance; the best is kept."""
        best, deviation = self._best.get(name, (0.0, 0.0))
        if scores.accuracy > best:
            self._best[name] = scores.accuracy, scores.deviation
        return best - scores.accuracy > max(COLLAPSE, BEYOND_CHANCE * math.hypot(scores.deviation, deviation))

    def _judge_pull(self, training: BatchScores, held_out: BatchScores) -> None:
        count = len(self._pulls["objective"])
        loss, objective = (float(torch.stack(self._pulls[name]).mean()) for name in ("loss", "objective"))
        if not loss:
            return
        # The NLL pulls at a sample's logits by |softmax - one-hot|, which sums to twice the doubt. So the doubt says
        # how hard the training loss pulled in other windows, whatever a gradient scaler multiplied it by then.
        self._strongest = max(self._strongest, training.doubt)
        pull = objective / loss * training.doubt / max(self._strongest, held_out.doubt)
        self.latest["pull"] = pull
        if pull > OUTWEIGHS and count >= FEWEST_PULLS:
            self.warn(
                "outweighs",
                f"the objective pulled {pull:.1f} times as hard at the logits as the training loss does at its "
                f"strongest, over {count} held-out batches: it leads the training. Lower its weight, or use "
                "CalibratedLoss(model), which has none",
            )

    def since_log(self) -> dict[str, float]:
        """Scores of the held-out batches since the last call, and the number of warnings so far."""
        return _named(self.held_out.since("log")) | {"warnings": float(len(self.warnings_))}

    def compare_evaluation(self, new: BatchScores, loader: Any, *, dropout: bool) -> None:
        """Compare the held-out batches since the last evaluation, with a new one."""
        held_out = self.held_out.since("evaluation")
        before, self._accuracy = self._accuracy, new.accuracy
        if not held_out.samples:
            return
        low, high = sorted((before, new.accuracy))  # an accuracy in between is as expected
        nearest = min(max(held_out.accuracy, low), high)
        if dropout and held_out.accuracy < nearest:
            return
        dataset = getattr(loader, "dataset", None)
        in_a_pass = held_out.samples * length_hint(loader, held_out.batches) / held_out.batches
        # A sample that passed several times counts once.
        distinct = len(dataset) if isinstance(dataset, Sized) else in_a_pass
        held_out = held_out._replace(samples=min(held_out.samples, distinct))
        # The gap may have changed while these batches passed: it is not compared.
        self.compare(new._replace(accuracy=nearest, gap=math.nan), held_out)

    def warn_of_training_samples(self, temperature: float, held_out: BatchScores) -> None:
        """Warn of a temperature that samples ask for which the network was trained on, unless they were compared."""
        if not self._was_compared and not self._is_apart:
            self.warn(
                "trained on",
                f"the network is right on {held_out.accuracy:.1%} of the held-out samples, with a log loss like that "
                f"of training batches, and they ask for a temperature of {temperature:.2g}, more confidence, as "
                "training samples do. Check that no held-out sample is in the training data, and compare with new "
                "data: finish(held_out, new=validation)",
            )

    def compare(self, new: BatchScores, held_out: BatchScores) -> None:
        """Warn when held-out data and new data, which took no part in training, differ by more than chance."""
        self._was_compared = True
        apart = held_out.accuracy - new.accuracy
        error = math.hypot(new.deviation, held_out.deviation)
        if self.has_objective:
            does = "lets the network learn" if apart > 0 else "makes the network un-learn"
            cause = f"the objective {does} these samples"
            remedy = "use method='temperature', where no gradient comes from held-out data, or a smaller weight"
        else:
            easier = "they are easier than new data, or some of them are trained on too"
            cause = easier if apart > 0 else "they are harder than new data"
            remedy = "draw the held-out samples at random from the same data, and check that no sample is in both parts"
        if abs(apart) > BEYOND_CHANCE * error:
            self.warn(
                "parted",
                f"accuracy is {held_out.accuracy:.1%} on held-out and {new.accuracy:.1%} on new data, a difference "
                f"beyond chance ({abs(apart) / error:.0f} standard errors): {cause}, and calibration "
                f"on them no longer says anything about new data. Remedy: {remedy}",
            )
        # A sample's confidence less its correctness varies by no more than its correctness does, or hardly.
        elif abs(new.gap - held_out.gap) > BEYOND_CHANCE * error:
            self.warn(
                "gap",
                f"confidence exceeds accuracy by {100 * held_out.gap:.1f} points on held-out and by "
                f"{100 * new.gap:.1f} on new data, a difference beyond chance: calibration on held-out data no longer "
                f"says anything about new data. Remedy: {remedy}",
            )

    def warn(self, kind: str, message: str) -> None:
        """Give a warning once."""
        if kind not in self.warnings_:
            self.warnings_[kind] = message
            warn(message)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what is warned about next."""
        sums = {"training": vars(self.training), "held_out": vars(self.held_out)}
        return copy.deepcopy(vars(self) | sums)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        values = copy.deepcopy(dict(state))
        vars(self.training).update(values.pop("training"))
        vars(self.held_out).update(values.pop("held_out"))
        vars(self).update(values)


def _named(held_out: BatchScores) -> dict[str, float]:
    """Scores of held-out batches, as far as there are any, for a log."""
    values = {}
    if held_out.samples:
        values = {f"held_out_{name}": getattr(held_out, name) for name in ("accuracy", "nll", "gap")}
    if held_out.values:
        values |= {"objective": held_out.value, "silent": held_out.silent}
    return values
