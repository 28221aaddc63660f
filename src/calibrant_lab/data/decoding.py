"""Images of any size, decoded one by one and scaled to one size, as for ImageNet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

AREA = (0.08, 1.0)  # share of the image that a random crop covers
RATIO = (3 / 4, 4 / 3)  # aspect ratio of a random crop
ATTEMPTS = 10
RESIZED = 256 / 224  # ratio of the shorter side of an image to the side of its centre crop


class PictureError(ValueError):
    """An image cannot be decoded. The message is one line, also from a worker of a ``DataLoader``.

    There torch creates the error again from the text of the traceback; only the last line is kept.
    """

    def __init__(self, message: str) -> None:
        kind = type(self)
        last_line = message.rstrip("\n").rpartition("\n")[2]
        super().__init__(last_line.removeprefix(f"{kind.__module__}.{kind.__qualname__}: "))


class PictureSource(Protocol):
    """A sequence of RGB images."""

    def __len__(self) -> int:
        """Number of images."""

    def __getitem__(self, index: int) -> "Image":
        """One decoded image."""


@dataclass(frozen=True)
class PictureFiles:
    """Images in files, decoded on access."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> "Image":
        from PIL import Image

        try:
            with Image.open(self.paths[index]) as picture:
                return picture.convert("RGB")
        except MemoryError:
            raise
        except Exception as error:  # a damaged image can raise anything
            problem = f"{self.paths[index]}: cannot be decoded as an image ({error}): replace or delete it"
            raise PictureError(problem.replace("\n", " ")) from error


class Pictures(Dataset[tuple[Tensor, int]]):
    """A map-style data set of images, for a ``DataLoader`` with workers.

    Each becomes a square of ``size`` pixels, ``(pixels / 255 - mean) / std``: the centre crop, or with ``augment`` a
    random resized crop; ``flip`` adds horizontal flips with probability 0.5. Random crops and flips come from torch's
    global generator, which a ``DataLoader`` seeds for each worker.
    """

    def __init__(
        self,
        source: PictureSource,
        labels: Tensor,
        *,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool,
        flip: bool = True,
    ) -> None:
        if len(source) != len(labels):
            raise ValueError(f"every image needs a label, got {len(source)} images and {len(labels)} labels")
        if size < 1 or len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(
                f"size must be at least 1, mean and std must have 3 values, and std must be positive, got "
                f"{size}, {list(mean)} and {list(std)}"
            )
        self.labels = labels
        self._source = source
        self._size = size
        self._mean = torch.tensor(mean).view(3, 1, 1)
        self._std = torch.tensor(std).view(3, 1, 1)
        self._augment = augment
        self._flip = flip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        whole = self._source[index]
        picture = random_part(whole, self._size, flip=self._flip) if self._augment else centre(whole, self._size)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return values.sub_(self._mean).div_(self._std), int(self.labels[index])


def random_part(picture: "Image", size: int, *, flip: bool) -> "Image":
    """A random resized crop of 8 to 100 % of the area; ``flip`` adds a horizontal flip with probability 0.5."""
    from PIL.Image import Resampling, Transpose

    part = picture.crop(random_box(*picture.size)).resize((size, size), Resampling.BILINEAR)
    return part.transpose(Transpose.FLIP_LEFT_RIGHT) if flip and torch.rand(()) < 0.5 else part


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random crop: area uniform, aspect ratio log-uniform, as is usual."""
    shapes = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(ATTEMPTS):
        area = width * height * _uniform(*AREA)
        ratio = math.exp(_uniform(*shapes))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = (int(torch.randint(places + 1, ())) for places in (width - w, height - h))
            return left, top, left + w, top + h
    # If no crop fits a very long image: the largest centred one with an allowed aspect ratio.
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def centre(picture: "Image", size: int) -> "Image":
    """The centre crop, after scaling the shorter side to a little more than ``size``."""
    from PIL.Image import Resampling

    shorter = int(size * RESIZED)
    width, height = picture.size
    least = min(width, height)
    scaled = int(shorter * width / least), int(shorter * height / least)
    left, top = (round((side - size) / 2) for side in scaled)
    return picture.resize(scaled, Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()
