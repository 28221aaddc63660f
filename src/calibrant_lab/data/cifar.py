"""CIFAR-10 and CIFAR-100 from their published Python files, which are pickles and read without trusting them."""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.files import FileError
from calibrant_lab.data import hub
from calibrant_lab.data.images import ImageData, Images
from calibrant_lab.data.sources import Source, find_files, md5, wrong_checksum

SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR10 = Source("CIFAR-10", "the folder cifar-10-batches-py", SITE, "uoft-cs/cifar10")
CIFAR100 = Source("CIFAR-100", "the folder cifar-100-python", SITE, "uoft-cs/cifar100")
# Checksums as published; the last file is the test set.
CIFAR10_CHECKSUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100_CHECKSUMS = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}


def load_cifar10(folder: Path | None) -> ImageData:
    """50,000 training and 10,000 test images, 32×32 in colour, of 10 classes."""
    return _load(folder, "cifar-10-batches-py", CIFAR10_CHECKSUMS, "label", 10, CIFAR10)


def load_cifar100(folder: Path | None) -> ImageData:
    """50,000 training and 10,000 test images, 32×32 in colour, of 100 classes (the fine labels)."""
    return _load(folder, "cifar-100-python", CIFAR100_CHECKSUMS, "fine_label", 100, CIFAR100)


def _load(
    folder: Path | None, below: str, checksums: Mapping[str, str], label: str, classes: int, source: Source
) -> ImageData:
    if folder is None:
        return ImageData(*hub.fetch_images(source, image="img", label=label), classes)
    paths = find_files(folder, below, list(checksums), source, suffixes=("",))
    *train, test = (
        _read(path, expected, f"{label}s".encode(), classes, source)
        for path, expected in zip(paths, checksums.values(), strict=True)
    )
    pixels, labels = zip(*train, strict=True)
    return ImageData(Images(torch.cat(pixels), torch.cat(labels)), test, classes)


def _read(path: Path, expected: str, labels_name: bytes, classes: int, source: Source) -> Images:
    content = path.read_bytes()
    if (found := md5(content)) != expected:
        raise wrong_checksum(path, expected, found, source)
    batch = unpickle(path, content)
    try:
        by_channel = batch[b"data"].values.reshape(-1, 3, 32, 32)
        # Stored in the channels_last format that batches have.
        pixels = torch.from_numpy(by_channel.transpose(0, 2, 3, 1).copy()).permute(0, 3, 1, 2)
        labels = torch.tensor(batch[labels_name])
        if labels.dtype != torch.int64 or labels.shape != pixels.shape[:1]:
            raise ValueError("every image needs a whole number as its label")
        if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(f"labels must lie in 0..{classes - 1}")
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise FileError(path, f"is not a file of {source.name} ({error}): download it from {source.site}") from error
    return Images(pixels, labels)


def unpickle(path: Path, content: bytes) -> Any:
    """Read a pickle of plain values and byte arrays; anything else is refused, and no code in it is run."""
    try:
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise FileError(path, f"cannot be unpickled safely ({error}): download it again from {SITE}") from error


class _Type:
    """Replacement for ``numpy.dtype`` that only allows bytes."""

    def __init__(self, name: bytes, *_: object) -> None:
        if name != b"u1":
            raise pickle.UnpicklingError(f"it has an array of {name!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which do not matter for bytes."""


class _Array:
    """Replacement for ``numpy.ndarray``, so that a pickle cannot call NumPy."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, bytes]) -> None:
        _, shape, _, column_major, content = state
        self.values = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if column_major else "C")


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return STAND_INS[module, name]
