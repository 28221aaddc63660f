"""A folder of pictures laid out as ImageNet is: ``train/<class>/*`` and ``val/<class>/*``."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.files import FileError
from calibrant_lab.data import hub
from calibrant_lab.data.pictures import PictureFiles, Pictures, PictureSource
from calibrant_lab.data.sources import Source

SUFFIXES = {".jpeg", ".jpg", ".png"}
MEAN = (0.485, 0.456, 0.406)  # of ImageNet, as is usual
STD = (0.229, 0.224, 0.225)
SOURCE = Source(
    name="ImageNet-100",
    files="train/<class>/*.JPEG and val/<class>/*.JPEG",
    site="https://www.image-net.org/download.php",
    hub="clane9/imagenet-100",
)


class ImageFolderData(NamedTuple):
    """A data set of pictures on disk."""

    train: Pictures
    train_unaugmented: Pictures  # the same, in the same order, for the part that validates: one split serves both
    test: Pictures
    labels: Tensor  # int64, of the training pictures
    classes: int


def load_image_folder(
    folder: Path | None,
    *,
    size: int = 224,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    flip: bool = True,
    classes: Path | None = None,
) -> ImageFolderData:
    """Pictures to train on (a random part of each) and to test on (the centre), see :class:`Pictures`.

    Labels number the class folders in the order of their names. ``classes`` is a text file that begins each line with
    the name of a class folder, when only some are wanted: ImageNet-100 is a part of ImageNet. Without a folder above
    ``train`` and ``val``, ImageNet-100 is fetched from the Hugging Face hub.
    """
    train: PictureSource
    test: PictureSource
    if folder is None:
        if classes is not None:
            raise ValueError(f"a list of classes ({classes}) needs a folder to choose them from: give --data-dir too")
        fetched = hub.fetch_pictures(SOURCE, ("train", "validation"), image="image", label="label")
        (train, labels), (test, test_labels) = fetched
        number = int(max(labels.max(), test_labels.max())) + 1
    else:
        names = _class_names(folder, classes)
        train, labels = _files(folder / "train", names)
        test, test_labels = _files(folder / "val", names)
        number = len(names)
    pictures = partial(Pictures, size=size, mean=mean, std=std, flip=flip)
    return ImageFolderData(
        pictures(train, labels, augment=True), pictures(train, labels, augment=False),
        pictures(test, test_labels, augment=False), labels, number,
    )  # fmt: skip


def _class_names(folder: Path, classes: Path | None) -> list[str]:
    """The class folders to use, sorted, each of which is in ``train`` and in ``val``."""
    there: dict[str, set[str]] = {}
    for part in ("train", "val"):
        path = folder / part
        there[part] = {entry.name for entry in path.iterdir() if entry.is_dir()} if path.is_dir() else set()
        if not there[part]:
            raise SOURCE.lacking(folder, f"has no class folders in {path}")
    if classes is None:
        if only := sorted(there["train"] ^ there["val"]):
            raise FileError(
                folder,
                f"train and val must have the same class folders, but {_some(only)} is in one only: complete it, or "
                "list the classes to use in a file",
            )
        return sorted(there["train"])
    try:
        lines = classes.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FileError(classes, "is not text in UTF-8: it must name class folders, one a line") from error
    wanted = [line.split()[0] for line in lines if line.strip()]
    if not wanted or len(set(wanted)) < len(wanted):
        raise FileError(classes, "must name at least one class folder, one a line, none twice")
    if missing := sorted(set(wanted) - (there["train"] & there["val"])):
        raise FileError(
            classes, f"names {_some(missing)}, which is not in both {folder / 'train'} and {folder / 'val'}"
        )
    return sorted(wanted)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _files(folder: Path, names: list[str]) -> tuple[PictureFiles, Tensor]:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        if not found:
            raise FileError(folder / name, f"has no pictures ({', '.join(sorted(SUFFIXES))})")
        paths += found
        labels += [label] * len(found)
    return PictureFiles(paths), torch.tensor(labels)
