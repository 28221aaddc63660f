"""Test images under distribution shift: the published CIFAR-10-C and CIFAR-100-C, or generated corruptions."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.files import FileError
from calibrant_lab import plugins
from calibrant_lab.data.images import Images
from calibrant_lab.shift.corruptions import CORRUPTIONS, NOT_GENERATED, SEVERITIES, corrupt
from calibrant_lab.trials.configuration import Configuration

SourceName = Literal["official", "generated"]
SITES = {"CIFAR-10-C": "https://zenodo.org/records/2535967", "CIFAR-100-C": "https://zenodo.org/records/3555552"}
IMAGES, SIDE = 10_000, 32  # of CIFAR's test set
GENERATION = 1  # incremented when generated images change, to invalidate stored results


@dataclass(frozen=True)
class Official:
    """The published files of one data set: for each corruption, all test images at severity 1, then 2, ..."""

    paths: dict[str, Path]
    labels: Tensor  # of the test set, once
    source: SourceName = "official"
    clean: None = None

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Corruptions whose files exist."""
        return tuple(self.paths)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the labels and of some images."""
        digest = hashlib.blake2b(self.labels.numpy().tobytes(), digest_size=8)
        for name, path in self.paths.items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(_opened(path)[:: len(self.labels) // 2 + 1]).data)
        return digest.hexdigest()

    def corrupted(self, name: str, severity: int, count: int) -> Images:
        """The first ``count`` images, from the file."""
        start = (severity - 1) * len(self.labels)
        pixels = np.array(_opened(self.paths[name])[start : start + count])
        return Images(torch.from_numpy(pixels).permute(0, 3, 1, 2), self.labels[:count])


@dataclass(frozen=True)
class Generated:
    """Corruptions of the clean test set of a recipe, which is loaded lazily."""

    configuration: Configuration
    folder: Path | None  # with the official files of the clean data
    source: SourceName = "generated"
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    fingerprint: str = f"generation {GENERATION}"

    @cached_property
    def clean(self) -> Images:
        """The test set before corruption."""
        images: Images = self.configuration.of_recipe.load(self.configuration.settings, self.folder).test.images
        return images

    def corrupted(self, name: str, severity: int, count: int) -> Images:
        """The first ``count`` images, generated on demand."""
        return Images(corrupt(self.clean.pixels[:count], name, severity), self.clean.labels[:count])


# Corrupted images of a test set, in its order; ``clean`` has the clean images, if they are known.
ShiftedImages = Official | Generated


def shifted_images(configuration: Configuration, data: Path | None, corrupted: Path | None) -> ShiftedImages:
    """The published files in ``corrupted`` or below ``data``, else corruptions of the recipe's clean test set."""
    published, name = configuration.of_recipe.shift, plugins.short(configuration.recipe)
    if not published or not {"mean", "std"} <= type(configuration.settings).model_fields.keys():
        raise ValueError(
            f"images of {name} cannot be corrupted: figure6 needs a recipe of images in memory with shift=True and the "
            "settings mean and std"
        )
    if isinstance(published, str):
        if corrupted is not None:
            return official(corrupted, published)
        if data is not None and (data / published / "labels.npy").is_file():
            return official(data, published)
    elif corrupted is not None:
        raise ValueError(
            f"published corruptions exist for {' and '.join(SITES)}, not for {name}: "
            "leave out the folder to generate them"
        )
    return Generated(configuration, data)


def official(folder: Path, name: str, *, images: int = IMAGES) -> Official:
    """Find and check the published files, in the folder or its subfolder of this name; nothing is unpickled."""
    get = f"download {name} from {SITES[name]} and unpack it there"
    where = next((place for place in (folder, folder / name) if (place / "labels.npy").is_file()), None)
    if where is None:
        raise FileError(folder, f"has no labels.npy, nor does its subfolder {name}: {get}")
    names = [*CORRUPTIONS, *NOT_GENERATED]
    paths = {one: where / f"{one}.npy" for one in names if (where / f"{one}.npy").is_file()}
    if not paths:
        raise FileError(where, f"has none of {', '.join(f'{one}.npy' for one in names)}: {get}")
    for path in paths.values():
        _check(path, _opened(path), (len(SEVERITIES) * images, SIDE, SIDE, 3), get)
    labels = _opened(where / "labels.npy")
    _check(where / "labels.npy", labels, (len(SEVERITIES) * images,), get)
    by_severity = torch.from_numpy(np.array(labels, dtype=np.int64)).view(len(SEVERITIES), images)
    if not (by_severity == by_severity[0]).all():
        raise FileError(where / "labels.npy", f"must repeat the labels of the test set for each severity: {get}")
    return Official(paths, by_severity[0].clone())


def _opened(path: Path) -> npt.NDArray[np.generic]:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(path, f"cannot be read as an array ({error}): download it again") from error
    if not isinstance(found, np.ndarray):
        raise FileError(path, "is an archive, not one array: download it again")
    return found


def _check(path: Path, found: npt.NDArray[np.generic], shape: tuple[int, ...], get: str) -> None:
    is_labels = len(shape) == 1
    right_type = np.issubdtype(found.dtype, np.integer) if is_labels else found.dtype == np.uint8
    if not right_type or found.shape != shape:
        expected = f"{'whole numbers' if is_labels else 'uint8'} of shape {shape}"
        raise FileError(path, f"must be {expected}, got {found.dtype} of shape {found.shape}: {get}")
