"""Networks of the arena's fresh pairs: small ones, each trained in a minute or two on one core.

A task chooses classes of a source or joins them, and every recipe trains a network of its own for it: ``plain`` goes
on until it over-fits, ``dropout`` stops earlier, ``smooth`` has label smoothing. Of the rows that no network is trained
on, one half calibrates and the other tests, then the other way round.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.arena_fresh_sources import APART, BUCKETS, Rows, load

Predictions = dict[str, NDArray[Any]]
Labels = Callable[[Tensor], Tensor]
# Of the hundred classes of Tiny-ImageNet, in the order of their WordNet numbers, these many are animals.
ANIMALS = 59
BATCH = 128


class Recipe(NamedTuple):
    """How a network is made and trained, by AdamW with a learning rate of 0.001."""

    width: int
    epochs: int
    dropout: float = 0.0
    smoothing: float = 0.0


RECIPES = {"plain": Recipe(2, 15), "dropout": Recipe(3, 8, dropout=0.4), "smooth": Recipe(2, 8, smoothing=0.1)}


def _same(y: Tensor) -> Tensor:
    return y


def _is(label: int) -> Labels:
    return lambda y: (y == label).long()


def _among(*classes: int) -> Labels:
    """The place of a class among some, and -1, which leaves a row out, for others."""

    def labels(y: Tensor) -> Tensor:
        found = torch.full_like(y, -1)
        for place, label in enumerate(classes):
            found[y == label] = place
        return found

    return labels


def _below(count: int) -> Labels:
    return lambda y: torch.where(y % APART < count, y % APART, -1)


# What stands before the first hyphen is the source. A task of two images names the classes of both.
TASKS: dict[str, Labels] = {
    "cad-entailment": _is(0),
    "cad-nli": _same,
    "cifar10-animals": _among(2, 3, 4, 5, 6, 7),
    "cifar10-automobile-truck": _among(1, 9),
    "cifar10-bird-airplane": _among(2, 0),
    "cifar10-deer-horse": _among(4, 7),
    "cities-asia": lambda y: (y // APART == 1).long(),
    "cities-continent": lambda y: y // APART,
    "cities-country": _below(100),
    "cities-europe": lambda y: (y // APART == 2).long(),
    "mnist-digits": _same,
    "mnist-parity": lambda y: y % 2,
    "mnist-three-five": _among(3, 5),
    "mnist-three-five-eight": _among(3, 5, 8),
    "mnist-two": _same,
    "multinli-contradiction": _is(2),
    "multinli-entailment": _is(0),
    "multinli-nli": _same,
    "rte-entailment": _is(0),
    "sick-entailment": _is(0),
    "sick-neutral": _is(1),
    "sick-nli": _same,
    "snli-contradiction": _is(2),
    "snli-entailment": _is(0),
    "snli-nli": _same,
    "tiny-animal": lambda y: (y < ANIMALS).long(),
    "tiny-hundred": _same,
    "tiny-ten": _among(*range(0, 100, 10)),
}
# Tasks of the second and third generation are split once.
SECOND: dict[str, Labels] = {
    "genders-three": _same,
    "genders-women": _below(2),
    "glyphs-case": lambda y: torch.where((y >= 10) & (y < 62), (y >= 36).long(), -1),
    "glyphs-digits": _below(10),
    "glyphs-hundred": _same,
    "library-blank": lambda y: y // APART,
    "library-hundred": _below(100),
    "library-ten": _below(10),
    "locales-danish": _among(0, 6),
    "locales-hundred": _same,
    "locales-spanish": _among(3, 8),
    "locales-ten": _below(10),
    "sounds-hundred": _below(100),
    "sounds-stress": lambda y: y // APART % 2,
    "sounds-syllables": lambda y: (y // APART // 2).clamp_max(4),
    "unicode-category": _same,
    "unicode-letter": lambda y: ((y == 0) | (y == 3) | (y == 4)).long(),
}
THIRD: dict[str, Labels] = {
    "airports-america": lambda y: (y != 0).long(),
    "airports-brazil": _among(1, 2),
    "captchas-digit": lambda y: (y < 10).long(),
    "captchas-round": _among(0, 10),
    "frequencies-common": _same,
    "languages-english": _among(4, 5),
    "languages-german": _among(2, 3),
    "languages-spanish": _among(0, 1),
    "patches-gravel": _among(1, 2),
    "patches-stone": lambda y: ((y == 0) | (y == 2)).long(),
    "people-last": lambda y: (y == 2).long(),
    "people-women": _among(0, 1),
    "sentiments-positive": _same,
    "speech-verb": _same,
}
ALL = TASKS | SECOND | THIRD


def source_of(task: str) -> str:
    """The source of a task."""
    return task.split("-")[0]


def predictions(task: str, folder: Path, cache: Path) -> Predictions:
    """Calibration and test part of every network and split, by the arena's keys."""
    source = source_of(task)
    rows = _of(task, load(source, folder, cache))
    order = np.random.default_rng(zlib.crc32(task.encode())).permutation(len(rows.other_y))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    found: Predictions = {}
    for name, recipe in RECIPES.items():
        p = _trained(rows, recipe, seed=zlib.crc32(f"{task} {name}".encode()))
        for split in range(2 if task in TASKS else 1):
            for part, half in (("cal", halves[split]), ("test", halves[1 - split])):
                found[f"{name}-{split}/{part}"] = p[half].astype(np.float32)
                found[f"{name}-{split}/{part}_y"] = rows.other_y.numpy()[half]
    return found


def _of(task: str, rows: Rows) -> Rows:
    """The rows of a task with its labels."""

    def part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if task.endswith("-two"):  # side by side with the next, so that every image is once on the left
            other = torch.arange(len(y)).roll(1)
            return torch.cat((x, x[other]), dim=3), 10 * y + y[other]
        y = ALL[task](y)
        return x[y >= 0], y[y >= 0]

    return Rows(*part(rows.x, rows.y), *part(rows.other_x, rows.other_y))


def _trained(rows: Rows, recipe: Recipe, seed: int) -> NDArray[np.float64]:
    """Probabilities of the other rows by a network trained on the first."""
    torch.manual_seed(seed)
    network = _network(rows, recipe)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(recipe.epochs):
        for some in torch.randperm(len(rows.y)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(rows.x[some]), rows.y[some], label_smoothing=recipe.smoothing).backward()
            optimizer.step()
    network.eval()
    with torch.inference_mode():
        logits = torch.cat([network(x) for x in rows.other_x.split(1000)])
    return logits.double().softmax(1).numpy()


def _network(rows: Rows, recipe: Recipe) -> nn.Module:
    """A CNN for images, a perceptron on means of embeddings for words."""
    classes, width = int(torch.cat((rows.y, rows.other_y)).max()) + 1, recipe.width
    drop = nn.Dropout(recipe.dropout)
    if rows.x.dim() == 4:
        return _convolutions(rows.x, 8 * width, nn.Sequential(nn.Flatten(), drop, nn.LazyLinear(classes)))
    hidden = [nn.LazyLinear(64 * width), nn.ReLU(), drop, nn.Linear(64 * width, classes)]
    network = nn.Sequential(Words(16 * width), *hidden)
    network(rows.x[:2])  # finds the number of inputs of the first layer
    return network


def _convolutions(x: Tensor, channels: int, head: nn.Module) -> nn.Module:
    """Three layers, each at half the size of the one before."""
    layers: list[nn.Module] = []
    for before, after in ((x.shape[1], channels), (channels, 2 * channels), (2 * channels, 4 * channels)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    network = nn.Sequential(*layers, head)
    network(x[:2])  # finds the number of inputs of the last layer
    return network


class Words(nn.Module):
    """The mean of the embeddings of words or n-grams; of two sentences both means, and how they differ."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, size, mode="mean", padding_idx=0)

    def forward(self, rows: Tensor) -> Tensor:
        """Features ``(N, size)``, or ``(N, 4 size)`` of two sentences."""
        if rows.dim() == 2:
            return torch.as_tensor(self.bag(rows))
        u, v = (self.bag(rows[:, k]) for k in range(2))
        return torch.cat((u, v, (u - v).abs(), u * v), 1)
