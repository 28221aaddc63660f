"""Data sets from the Hugging Face hub, as an alternative to the official files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant_lab.data.images import Images
from calibrant_lab.data.sources import Source
from calibrant_lab.data.text import Pairs

if TYPE_CHECKING:
    from PIL.Image import Image


def fetch_images(source: Source, *, image: str, label: str) -> tuple[Images, Images]:
    """Training and test images, decoded into memory; ``image`` and ``label`` are column names on the hub."""
    with _splits(source) as splits:
        return _decoded(splits["train"], image, label), _decoded(splits["test"], image, label)


def fetch_pairs(source: Source, parts: Sequence[Sequence[str]]) -> list[Pairs]:
    """Sentence pairs of each part, which joins one or more splits; pairs without an agreed label are left out."""
    with _splits(source) as splits:
        return [_joined([splits[name] for name in names]) for names in parts]


class HubPictures:
    """The images of one split, decoded on access."""

    def __init__(self, split: Any, image: str) -> None:
        self._column = split.select_columns([image])
        self._name = image

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> "Image":
        picture: Image = self._column[index][self._name]
        return picture.convert("RGB")


def fetch_pictures(source: Source, names: Sequence[str], *, image: str, label: str) -> list[tuple[HubPictures, Tensor]]:
    """The images of some splits, decoded on access, and their labels."""
    with _splits(source) as splits:
        return [(HubPictures(splits[name], image), _labels(splits[name], label)) for name in names]


def _decoded(split: Any, image: str, label: str) -> Images:
    first = np.asarray(split[0][image])
    pixels = np.empty((len(split), *first.shape), dtype=np.uint8)
    for k, row in enumerate(split.select_columns([image])):
        pixels[k] = np.asarray(row[image])
    by_channel = torch.from_numpy(pixels).view(len(split), *first.shape[:2], -1).permute(0, 3, 1, 2)
    return Images(by_channel, _labels(split, label))


def _joined(splits: Sequence[Any]) -> Pairs:
    labels = torch.cat([_labels(split, "label") for split in splits])
    agreed = labels >= 0
    premises, hypotheses = (
        list(compress(chain.from_iterable(split[name] for split in splits), agreed.tolist()))
        for name in ("premise", "hypothesis")
    )
    return Pairs(premises, hypotheses, labels[agreed])


def _labels(split: Any, name: str) -> Tensor:
    return torch.tensor(list(split[name]), dtype=torch.int64)


@contextmanager
def _splits(source: Source) -> Iterator[Mapping[str, Any]]:
    """The splits of a data set; errors are reported in one sentence with the alternatives."""
    try:
        yield import_module("datasets").load_dataset(source.hub)
    except MemoryError:
        raise
    except Exception as error:  # `datasets` raises errors of half a dozen libraries
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise OSError(
            f"{source.name}: no data folder was given, and {source.hub} could not be loaded from the Hugging Face hub "
            f"({reason[:200]}): check the network and `pip install 'calibrant[hf]'`, or download {source.files} from "
            f"{source.site} and give the folder with --data-dir"
        ) from error
