"""The temperature in the loop: a number that is fitted to held-out data while a network trains, and once more after."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.posthoc.scaling import TemperatureError, best_temperature, standard_error, temperature_or_one
from calibrant.training.forward import joined, scores_of
from calibrant.training.guard import (
    BEYOND_CHANCE,
    FEWEST_SEEN,
    GO_BACK,
    PROBABILITIES,
    Guard,
    look_like_probabilities,
)

# A temperature beyond e^±40 means that the logits have no scale.
FARTHEST = 40.0
# T is not fitted to fewer samples.
FEWEST = 16
# Prior standard deviation of the best log T around that of the training: a factor of 1.6 up or down.
SPREAD = 0.5
# Logits whose scale differs by more than this factor, in logarithms, from the last ones are those of other weights.
OTHER_WEIGHTS = math.log(1.5)
# Newton's method stops at steps below this during training, where T keeps moving. The error is about its square.
NEAR = 0.03
# Weight of the latest value in the running mean of the held-out log loss, and fewest steps without a new minimum.
LATEST, EARLIEST = 0.3, 30
# A network has learned once the kept labels are exp(100) times as likely as under the frequencies of their classes:
# 0.05 nats for each of 2,000. Chance gains a few nats, and ten times as many where each sample was kept ten times.
LEARNED = 100.0
# A network no better than chance whose log loss at T = 1 is this many times that of uniform predictions memorizes. At
# plateaus before learning (parity of 3 of 20 bits, 1,800 rows) it was up to 1.14 times.
MEMORIZES = 1.25
# Temperature relative to the spread of logits at which predictions are nearly uniform.
UNIFORM = 10.0
# A standard error of log T above this is a temperature that is right to a quarter of itself, at best.
UNSURE = 0.25
# Where this share of samples is right, a best temperature below this one, by more than chance, is that of samples the
# network was trained on, unless it was trained briefly or with a loss that makes it unsure.
SAME_SHARE, SAME_TEMPERATURE = 0.95, 0.7


class TemperatureLoop:
    """Follows the best temperature for the latest held-out logits, once the network overfits; see docs/science.md."""

    # Settings of the method. benchmarks/trust.py compares others; the log loss hardly depends on the first two.
    samples = 2000
    damping = 0.7  # share of the way to the solution that log T moves
    patience = 0.3  # share of the steps so far without a new minimum after which T moves; 0 lets it move at once

    def __init__(self) -> None:
        self.largest_logit = 0.0
        self.restart(trained_at=0.0)

    def restart(self, trained_at: float) -> None:
        """Begin again after the network was divided; ``trained_at`` is the log of its temperature in training."""
        self.over_fits = False
        self.log_temperature = 0.0
        self.prior = trained_at  # what trained_at() returns until the first held-out logits
        self._entries: list[tuple[int, Classification]] = []  # held-out logits as they were at each step
        self._fresh = 0
        self._best = 0.0
        self._log_loss = self._lowest = math.inf
        self._lowest_at = 0
        self._has_learned = False

    @property
    def temperature(self) -> float:
        """T now."""
        return math.exp(self.log_temperature)

    @property
    def moves(self) -> bool:
        """Whether T follows the best temperature, and is not 1."""
        return self.over_fits or self.patience == 0

    @property
    def best(self) -> float:
        """Best temperature for the latest held-out logits, whether or not T has moved."""
        return math.exp(self._best)

    @torch.no_grad()
    def observe(self, data: Classification, step: int) -> None:
        """Add a batch of held-out logits, or this rank's part of it, not yet divided by T, and move T."""
        data = gathered(data)
        if len(data.target):
            self.largest_logit = max(self.largest_logit, float(data.logits.abs().max()))
            self._entries.append((step, data))
            self._fresh += len(data.target)
        if self._fresh * 4 >= self._forget(step):
            self._fresh = 0
            self._move(step)

    def _move(self, step: int) -> None:
        data = self.buffer()
        enough = len(data.target) >= FEWEST
        best = solution(data, self._best, rough=True)
        if best is None and enough and bool((data.logits.argmax(1) == data.target).all()):
            best = min(self._best, 0.0)  # the lower, the better
        memorizes = enough and log_loss(data, 0.0) / math.log(data.logits.shape[1]) > MEMORIZES
        self._judge(step, self._best if best is None else best, data, memorizes)
        if best is None and memorizes and self.moves:
            best = math.log(UNIFORM * float(data.logits.std(1).mean()))  # the higher, the better
        if best is not None:
            self._best = best
        goal = 0.0 if not self.moves else self.log_temperature if best is None else max(best, 0.0)
        self.log_temperature += self.damping * (goal - self.log_temperature)

    def _judge(self, step: int, best: float, data: Classification, memorizes: bool) -> None:
        """Note the held-out log loss at the best temperature, and whether it has stopped falling."""
        # The best log loss of predictions no better than chance is that of uniform probabilities, log C. A network that
        # knows the frequencies of the classes, and nothing else, has learned nothing yet.
        now = min(log_loss(data, best), math.log(data.logits.shape[1]))
        self._has_learned |= len(data.target) * (_entropy(data) - now) > LEARNED
        self._log_loss = now if math.isinf(self._log_loss) else self._log_loss + LATEST * (now - self._log_loss)
        if self._log_loss < self._lowest:
            self._lowest, self._lowest_at = self._log_loss, step
            self.over_fits &= best > 0
        elif step - self._lowest_at > max(EARLIEST, self.patience * step):
            self.over_fits |= self._has_learned or memorizes

    def _forget(self, step: int) -> int:
        """Drop samples that are too old, and return how many are left."""
        sizes = [data.target.shape[0] for _, data in self._entries]  # several times as fast as len()
        kept, old = sum(sizes), 0
        while old < len(sizes) - 1 and (kept - sizes[old] >= self.samples or self._entries[old][0] < step / 2):
            kept -= sizes[old]
            old += 1
        del self._entries[:old]
        return kept

    def buffer(self) -> Classification:
        """The samples that T is fitted to."""
        if not self._entries:
            return Classification(torch.empty(0, 2), torch.empty(0, dtype=torch.long))
        return joined([data for _, data in self._entries])

    def trained_at(self, logits: Tensor) -> float:
        """Log of T when the network had these weights: earlier ones, with smaller logits, may have been put back."""
        if not self._entries:
            return self.prior
        if not self.moves or not len(logits):
            return self.log_temperature
        now, last = (float(rows.double().std(1).mean()) for rows in (logits, self.buffer().logits))
        change = math.log(now / last) if now > 0 and last > 0 else 0.0
        return self.log_temperature if abs(change) < OTHER_WEIGHTS else max(0.0, self.log_temperature + change)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, in tensors and numbers."""
        return vars(self) | {"_entries": [(step, *data) for step, data in self._entries]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        vars(self).update(state)
        self._entries = [(step, Classification(*columns)) for step, *columns in state["_entries"]]


def solution(data: Classification, start: float, *, rough: bool = False) -> float | None:
    """Log of the best temperature, or None if the data do not determine it; a rough one is to thousandths."""
    if len(data.target) < FEWEST:
        return None
    try:
        best = best_temperature(*data, start=start, tolerance=NEAR if rough else 1e-4)
    except TemperatureError:
        return None
    return math.log(best) if abs(math.log(best)) <= FARTHEST else None


def log_loss(data: Classification, log_temperature: float) -> float:
    """Mean NLL of logits divided by a temperature."""
    logits, target, weight = data
    losses = F.cross_entropy(logits.float() * math.exp(-log_temperature), target, reduction="none")
    return float(losses.mean() if weight is None else losses @ weight / weight.sum().clamp(min=1e-30))


def refined_nll(logits: Tensor, target: Tensor) -> tuple[float, float]:
    """The mean log loss after the best temperature, and that temperature, 1 if there is none."""
    finite = logits.isfinite()
    data = checks.classification(torch.where(finite, logits, 0.0), target)
    # Ignored samples may hold anything: classification() sets their logits to 0.
    if not finite.all() and checks.classification((~finite).float(), target).logits.any():
        return math.inf, 1.0
    logits, target, _ = counted(data)
    if not len(target):
        raise ValueError("the validation data has no labels: every target is -100")
    temperature = temperature_or_one(logits, target)
    return scores_of(logits.double() / temperature, target).nll, temperature


def shrunk(log_temperature: float, toward: float, error: float) -> float:
    """Posterior mean of an estimate with a normal error and a normal prior around ``toward`` of deviation SPREAD."""
    return toward + (log_temperature - toward) * SPREAD**2 / (SPREAD**2 + error**2)


def final_temperature(data: Classification, loop: TemperatureLoop, guard: Guard) -> tuple[float, float]:
    """Log of the temperature for held-out logits, shrunk toward that of the training, and its standard error."""
    logits, target, weight = data
    before = loop.trained_at(logits)
    best = solution(data, before)
    if best is None:
        reason, remedy = _why_unsolved(logits, target, guard)
        guard.warn(
            "unsolved",
            f"{len(target)} held-out samples do not determine a temperature ({reason}), and that of the training "
            f"loop, {math.exp(before):.3g}, stays: {remedy}",
        )
        return before, math.inf
    if look_like_probabilities(logits):
        guard.warn("softmax", PROBABILITIES)
    error = standard_error(logits, target, best, weight=weight)
    if error > UNSURE:
        guard.warn(
            "unsure",
            f"the temperature from {len(target)} held-out samples has a standard error of {error:.0%}: hold out more "
            "data",
        )
    return shrunk(best, before, error), error


def _why_unsolved(logits: Tensor, target: Tensor, guard: Guard) -> tuple[str, str]:
    """Why samples do not determine a temperature, and what to do."""
    right = float((logits.argmax(1) == target).double().mean())
    if guard.warnings_.keys() & {"not finite", "final not finite", "collapse", "fell"}:
        return "training has diverged", GO_BACK
    if len(target) < FEWEST:
        return f"{FEWEST} are the fewest", "hold out more data"
    if look_like_probabilities(logits):
        return "predictions are no better than chance", PROBABILITIES
    if right < 1:
        return "predictions are no better than chance", "hold out more data, or check that the network learns at all"
    seen = "check that the network was not trained on them too; if not, hold out more or harder data"
    return "every prediction is right", "hold out more data" if len(target) < FEWEST_SEEN else seen


def looks_trained_on(log_temperature: float, error: float, accuracy: float) -> bool:
    """Whether samples ask a network that is right on nearly all of them for far more confidence."""
    is_lower = log_temperature < min(math.log(SAME_TEMPERATURE), -BEYOND_CHANCE * error)
    return is_lower and accuracy >= SAME_SHARE


def _entropy(data: Classification) -> float:
    """Log loss of predicting the frequencies of the classes."""
    counts = torch.bincount(data.target, data.weight).double()
    share = counts[counts > 0] / counts.sum()
    return float(-(share * share.log()).sum())


def gathered(data: Classification) -> Classification:
    """The samples that count, of all ranks, on the CPU."""
    if distributed.is_distributed():
        logits, target, weight = data
        present = torch.ones_like(target, dtype=torch.bool) if weight is None else weight
        columns = distributed.gather_columns((*logits.T, target, present))
        has_weights = present.is_floating_point()
        present = columns[-1] if has_weights else columns[-1] > 0
        data = Classification(torch.stack(columns[:-2], 1), columns[-2].long(), present)
    return counted(data)


def counted(data: Classification) -> Classification:
    """The samples that count, on the CPU, and their weights if they are not a mask."""
    logits, target, weight = data
    if weight is None:
        return Classification(logits.detach().cpu(), target.cpu())
    rows = weight > 0
    weight = weight[rows].float().cpu() if weight.is_floating_point() else None
    return Classification(logits[rows].detach().cpu(), target[rows].cpu(), weight)
