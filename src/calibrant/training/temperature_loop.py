"""The temperature in the loop: a number that is fitted to held-out data while a network trains."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant import distributed, functional
from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.posthoc.temperature import solve_from

Criterion = Literal["nll", "esd"]
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


class _Entry(NamedTuple):
    """Held-out logits as they were at one step."""

    step: int
    logits: Tensor
    target: Tensor
    weight: Tensor | None


class TemperatureLoop:
    """Follows the best temperature for held-out data, once the network overfits.

    A buffer holds the latest ``samples`` held-out logits, except those older than half of the training so far. Whenever
    a quarter of the buffer is new, its best temperature is computed. T is 1 until the held-out log loss at that
    temperature has stopped falling, and from then on moves part of the way to it: before, the network learns more than
    it overfits, and a rising T would only slow it down. A plateau at chance level is not overfitting: T stays 1 until
    the held-out log loss has been clearly lower than that of the class frequencies, or is far higher at T = 1. When the
    log loss falls below its minimum again at a best temperature of 1 or less, T returns to 1. T is never below 1, which
    would act as a higher learning rate does. No gradient is involved. :class:`calibrant.training.CalibratedLoss`
    describes the settings.

    Example:
        >>> from calibrant.posthoc import TemperatureScaling
        >>> logits = torch.randn(500, 5, generator=torch.Generator().manual_seed(0)) * 4
        >>> target = (logits / 4 + torch.randn(500, 5, generator=torch.Generator().manual_seed(1))).argmax(1)
        >>> loop = TemperatureLoop(damping=1.0, patience=0)
        >>> loop.observe(checks.classification(logits, target), step=0)
        >>> round(loop.temperature, 2) == round(TemperatureScaling(strict=True).fit(logits, target).temperature_, 2)
        True
    """

    def __init__(
        self, criterion: Criterion = "nll", *, samples: int = 2000, damping: float = 0.7, patience: float = 0.3
    ) -> None:
        checks.check_choice("criterion", criterion, ("nll", "esd"))
        checks.check_count("samples", samples)
        checks.check_range("damping", damping, low=0, high=1, open_low=True)
        checks.check_range("patience", patience, low=0, high=1)
        self.criterion = criterion
        self.samples = samples
        self.damping = damping
        self.patience = patience
        self.over_fits = patience == 0
        self.log_temperature = 0.0
        self.largest_logit = 0.0
        self.prior = 0.0  # what trained_at() returns until the first held-out logits
        self._entries: list[_Entry] = []
        self._fresh = 0
        self._best = 0.0
        self._log_loss = self._lowest = math.inf
        self._lowest_at = 0
        self._has_learned = False

    def anew(self, trained_at: float) -> "TemperatureLoop":
        """A loop with the same settings for a finished network, which was trained at ``trained_at`` (a logarithm)."""
        loop = TemperatureLoop(self.criterion, samples=self.samples, damping=self.damping, patience=self.patience)
        loop.largest_logit, loop.prior = self.largest_logit, trained_at
        return loop

    @property
    def temperature(self) -> float:
        """T now."""
        return math.exp(self.log_temperature)

    @property
    def best(self) -> float:
        """Best temperature for the latest held-out logits, whether or not T has moved."""
        return math.exp(self._best)

    @torch.no_grad()
    def observe(self, data: Classification, step: int, weight: Tensor | None = None) -> None:
        """Add a batch of held-out logits, or this rank's part of it, not yet divided by T, and move T."""
        logits, target, weight = gathered(data, weight)
        if len(logits):
            self.largest_logit = max(self.largest_logit, float(logits.abs().max()))
            self._entries.append(_Entry(step, logits, target, weight))
            self._fresh += len(logits)
        if self._fresh * 4 >= self._forget(step):
            self._fresh = 0
            self._move(step)

    def _move(self, step: int) -> None:
        logits, target, weight = self.buffer()
        best = solution(logits, target, self._best, self.criterion, weight, rough=True)
        if best is None and len(target) >= FEWEST and bool((logits.argmax(1) == target).all()):
            best = min(self._best, 0.0)  # the lower, the better
        wrong = log_loss(logits, target, 0.0, weight) / math.log(logits.shape[1])
        memorizes = len(target) >= FEWEST and wrong > MEMORIZES
        self._judge(step, self._best if best is None else best, logits, target, weight, memorizes)
        if best is None and memorizes and self.over_fits:
            best = math.log(UNIFORM * float(logits.std(1).mean()))  # the higher, the better
        if best is not None:
            self._best = best
        goal = 0.0 if not self.over_fits else self.log_temperature if best is None else max(best, 0.0)
        self.log_temperature += self.damping * (goal - self.log_temperature)

    def _judge(
        self, step: int, best: float, logits: Tensor, target: Tensor, weight: Tensor | None, memorizes: bool
    ) -> None:
        """Note the held-out log loss at the best temperature, and whether it has stopped falling."""
        # The best log loss of predictions no better than chance is that of uniform probabilities, log C. A network that
        # knows the frequencies of the classes, and nothing else, has learned nothing yet.
        now = min(log_loss(logits, target, best, weight), math.log(logits.shape[1]))
        self._has_learned |= len(target) * (_entropy(target, weight) - now) > LEARNED
        self._log_loss = now if math.isinf(self._log_loss) else self._log_loss + LATEST * (now - self._log_loss)
        if self._log_loss < self._lowest:
            self._lowest, self._lowest_at = self._log_loss, step
            self.over_fits &= best > 0 or self.patience == 0
        elif step - self._lowest_at > max(EARLIEST, self.patience * step):
            self.over_fits |= self._has_learned or memorizes

    def _forget(self, step: int) -> int:
        """Drop samples that are too old, and return how many are left."""
        sizes = [entry.target.shape[0] for entry in self._entries]  # several times as fast as len()
        kept, old = sum(sizes), 0
        while old < len(sizes) - 1 and (kept - sizes[old] >= self.samples or self._entries[old].step < step / 2):
            kept -= sizes[old]
            old += 1
        del self._entries[:old]
        return kept

    def buffer(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits, target and weights that T is fitted to."""
        if not self._entries:
            return torch.empty(0, 2), torch.empty(0, dtype=torch.long), None
        _, logits, target, weights = zip(*self._entries, strict=True)
        if all(weight is None for weight in weights):
            return torch.cat(logits), torch.cat(target), None
        given = [torch.ones(len(entry.target)) if entry.weight is None else entry.weight for entry in self._entries]
        return torch.cat(logits), torch.cat(target), torch.cat(given)

    def trained_at(self, logits: Tensor) -> float:
        """Log of the temperature that the network with these held-out logits was trained at.

        This is T of the last step, unless earlier weights were put back since: their logits have another scale, and T
        was then smaller by about as much.
        """
        if not self._entries:
            return self.prior
        if not self.over_fits or not len(logits):
            return self.log_temperature
        now, last = (float(rows.double().std(1).mean()) for rows in (logits, self.buffer()[0]))
        change = math.log(now / last) if now > 0 and last > 0 else 0.0
        return self.log_temperature if abs(change) < OTHER_WEIGHTS else max(0.0, self.log_temperature + change)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, in tensors and numbers."""
        return {
            "log_temperature": self.log_temperature, "largest_logit": self.largest_logit, "fresh": self._fresh,
            "prior": self.prior,
            "entries": [tuple(entry) for entry in self._entries], "over_fits": self.over_fits, "best": self._best,
            "log_loss": self._log_loss, "lowest": self._lowest, "lowest_at": self._lowest_at,
            "has_learned": self._has_learned,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.log_temperature, self.largest_logit = state["log_temperature"], state["largest_logit"]
        self._fresh, self.prior = state["fresh"], state.get("prior", 0.0)
        self._entries = [_Entry(*entry) for entry in state["entries"]]
        self.over_fits, self._best = state["over_fits"], state["best"]
        self._log_loss, self._lowest, self._lowest_at = state["log_loss"], state["lowest"], state["lowest_at"]
        self._has_learned = state.get("has_learned", self.over_fits)  # not in earlier versions


def solution(
    logits: Tensor, target: Tensor, start: float, criterion: Criterion = "nll", weight: Tensor | None = None, *,
    rough: bool = False,
) -> float | None:  # fmt: skip
    """Log of the best temperature by a criterion, or None if the data do not determine it; rough is to thousandths."""
    if len(target) < FEWEST:
        return None
    found = solve_from(logits, target, start, weight=weight, tolerance=NEAR if rough else 1e-4)
    if found is None or abs(found) > FARTHEST:
        return None
    return found if criterion == "nll" else _least_esd(logits, target, found, weight)


def log_loss(logits: Tensor, target: Tensor, log_temperature: float, weight: Tensor | None = None) -> float:
    """Mean NLL of logits divided by a temperature."""
    losses = F.cross_entropy(logits.float() * math.exp(-log_temperature), target, reduction="none")
    return float(losses.mean() if weight is None else losses @ weight / weight.sum().clamp(min=1e-30))


def shrunk(log_temperature: float, toward: float, error: float) -> float:
    """Posterior mean of an estimate with a normal error and a normal prior around ``toward`` of deviation SPREAD."""
    return toward + (log_temperature - toward) * SPREAD**2 / (SPREAD**2 + error**2)


def _least_esd(logits: Tensor, target: Tensor, start: float, weight: Tensor | None) -> float:
    """Log of the temperature with the lowest ESD within a factor of e of the start: a grid, then golden section."""
    rows = logits.double()
    correct = rows.argmax(1) == target

    def esd(log_temperature: float) -> float:
        confidence = (rows * math.exp(-log_temperature)).softmax(1).amax(1)
        return float(functional.esd(confidence, correct, sample_weight=weight))

    grid = [start + step / 8 for step in range(-8, 9)]
    values = [esd(place) for place in grid]
    best = min(range(len(grid)), key=values.__getitem__)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(12):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if esd(left) < esd(right) else (left, high)
    return (low + high) / 2


def _entropy(target: Tensor, weight: Tensor | None) -> float:
    """Log loss of predicting the frequencies of the classes."""
    counts = torch.bincount(target, weight).double()
    share = counts[counts > 0] / counts.sum()
    return float(-(share * share.log()).sum())


def gathered(data: Classification, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The samples that count, of all ranks, on the CPU."""
    logits, target, mask = data.logits, data.target, data.mask
    if distributed.is_distributed():
        weights = torch.ones_like(logits[:, 0]) if weight is None else weight.to(logits.dtype)
        gathered, mask = distributed.gather_samples((*logits.T, target.to(logits.dtype), weights), mask)
        logits, target = torch.stack(gathered[:-2], 1), gathered[-2].long()
        weight = None if weight is None else gathered[-1]
    if mask is not None:
        logits, target, weight = logits[mask], target[mask], None if weight is None else weight[mask]
    return logits.detach().cpu(), target.cpu(), None if weight is None else weight.float().cpu()
