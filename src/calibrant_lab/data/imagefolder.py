"""A folder of images laid out as ImageNet: ``train/<class>/*`` and ``val/<class>/*``."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from calibrant.files import FileError
from calibrant_lab.data import hub
from calibrant_lab.data.decoding import PictureFiles, Pictures, PictureSource
from calibrant_lab.data.samples import Data, DatasetSamples
from calibrant_lab.data.sources import Source

SUFFIXES = {".jpeg", ".jpg", ".png"}
MEAN = (0.485, 0.456, 0.406)  # of ImageNet, the usual values
STD = (0.229, 0.224, 0.225)
SOURCE = Source(
    name="ImageNet-100",
    files="train/<class>/*.JPEG and val/<class>/*.JPEG",
    site="https://www.image-net.org/download.php",
    hub="clane9/imagenet-100",
)


def load_image_folder(
    folder: Path | None,
    *,
    size: int = 224,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    flip: bool = True,
    classes: Path | None = None,
    workers: int = 0,
) -> Data:
    """Training images (a random crop of each) and test images (the centre), see :class:`Pictures`.

    Labels number the class folders in alphabetical order. ``classes`` is a text file of class folders to use, one at
    the start of each line: ImageNet-100 is a subset of ImageNet. If the folder is None, ImageNet-100 is downloaded from
    the Hugging Face hub.
    """
    train: PictureSource
    test: PictureSource
    if folder is None:
        if classes is not None:
            raise ValueError(f"a list of classes ({classes}) needs a folder of images: give --data-dir too")
        fetched = hub.fetch_pictures(SOURCE, ("train", "validation"), image="image", label="label")
        (train, labels), (test, test_labels) = fetched
        number = int(max(labels.max(), test_labels.max())) + 1
    else:
        names = _class_names(folder, classes)
        train, labels = _files(folder / "train", names)
        test, test_labels = _files(folder / "val", names)
        number = len(names)
    pictures = partial(Pictures, size=size, mean=mean, std=std, flip=flip)
    plain, augmented = (pictures(train, labels, augment=augment) for augment in (False, True))
    tested = DatasetSamples(pictures(test, test_labels, augment=False), workers=workers)
    return Data(DatasetSamples(plain, augmented=augmented, workers=workers), tested, classes=number)


def _class_names(folder: Path, classes: Path | None) -> list[str]:
    """The class folders to use, sorted; each must be in ``train`` and in ``val``."""
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
                f"train and val must have the same class folders, but {_some(only)} is only in one: add it, or "
                "list the classes to use in a file",
            )
        return sorted(there["train"])
    try:
        lines = classes.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FileError(classes, "is not UTF-8 text: it must name class folders, one per line") from error
    wanted = [line.split()[0] for line in lines if line.strip()]
    if not wanted or len(set(wanted)) < len(wanted):
        raise FileError(classes, "must name at least one class folder, one per line, without duplicates")
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
            raise FileError(folder / name, f"has no images ({', '.join(sorted(SUFFIXES))})")
        paths += found
        labels += [label] * len(found)
    return PictureFiles(paths), torch.tensor(labels)
