"""The Hugging Face hub gives the same structures; here it is played by data sets made in memory."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.files import FileError
from calibrant_lab.data.cifar import load_cifar10, load_cifar100
from calibrant_lab.data.imagefolder import load_image_folder
from calibrant_lab.data.images import ImageBatches
from calibrant_lab.data.mnist import load_mnist
from calibrant_lab.data.nli import load_anli, load_snli

datasets = pytest.importorskip("datasets")
RNG = np.random.default_rng(0)


def pictures(count: int, shape: tuple[int, ...], name: str, label: str, classes: int) -> Any:
    pixels = RNG.integers(0, 256, (count, *shape), dtype=np.uint8)
    features = datasets.Features({name: datasets.Image(), label: datasets.Value("int64")})
    rows = {name: [Image.fromarray(one) for one in pixels], label: [k % classes for k in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


def sentences(tag: str, labels: list[int]) -> Any:
    count = range(len(labels))
    return datasets.Dataset.from_dict(
        {"premise": [f"{tag} {k}" for k in count], "hypothesis": [f"so {k}" for k in count], "label": labels}
    )


def play(monkeypatch: pytest.MonkeyPatch, splits: Any) -> list[str]:
    """Have the hub deliver this, or raise it; returns the ids asked for."""
    asked: list[str] = []

    def load_dataset(name: str) -> Any:
        asked.append(name)
        if isinstance(splits, BaseException):
            raise splits
        return splits

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


IMAGES: dict[str, tuple[Any, str, tuple[int, ...], str, str, int]] = {
    "mnist": (lambda: load_mnist(None, size=28), "ylecun/mnist", (28, 28), "image", "label", 10),
    "cifar10": (lambda: load_cifar10(None), "uoft-cs/cifar10", (32, 32, 3), "img", "label", 10),
    "cifar100": (lambda: load_cifar100(None), "uoft-cs/cifar100", (32, 32, 3), "img", "fine_label", 100),
}


@pytest.mark.parametrize("name", IMAGES)
def test_small_images_are_decoded_into_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load, hub_id, shape, image, label, classes = IMAGES[name]
    splits = {part: pictures(count, shape, image, label, classes) for part, count in (("train", 7), ("test", 3))}
    asked = play(monkeypatch, splits)
    found = load()
    assert (asked, found.classes) == ([hub_id], classes)
    for part, images in (("train", found.train), ("test", found.test)):
        expected = np.stack([np.asarray(row[image]) for row in splits[part]]).reshape(len(splits[part]), *shape[:2], -1)
        assert np.array_equal(images.pixels.permute(0, 2, 3, 1).numpy(), expected)
        assert images.pixels.dtype == torch.uint8
        assert images.labels.tolist() == list(splits[part][label])
    assert len(list(ImageBatches(found.train, 4, crop_padding=4))) == 2


def test_imagenet_is_decoded_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    train = pictures(5, (50, 40), "image", "label", 3)  # greyscale, as some of ImageNet's are
    asked = play(monkeypatch, {"train": train, "validation": pictures(4, (40, 60, 3), "image", "label", 3)})
    found = load_image_folder(None, size=32)
    assert (asked, found.classes) == (["clane9/imagenet-100"], 3)
    assert found.train.labels.tolist() == [0, 1, 2, 0, 1]
    assert [len(part) for part in (found.train.augmented, found.train.dataset, found.test.dataset)] == [5, 5, 4]
    image, label = found.test.dataset[3]
    assert (image.shape, label) == ((3, 32, 32), 0)
    assert found.train.augmented[0][0].shape == (3, 32, 32)


def test_snli_drops_pairs_without_an_agreed_label(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": sentences("a", [0, -1, 2]), "validation": sentences("b", [1]), "test": sentences("c", [-1, 1])}
    asked, found = play(monkeypatch, splits), load_snli(None)
    assert asked == ["stanfordnlp/snli"]
    assert (found.train.premises, found.train.labels.tolist()) == (["a 0", "a 2"], [0, 2])
    assert found.test.hypotheses == ["so 1"]


def test_anli_joins_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {f"{part}_r{k}": sentences(f"{part} {k}", [k - 1]) for part in ("train", "dev", "test") for k in (1, 2, 3)}
    asked, found = play(monkeypatch, splits), load_anli(None)
    assert asked == ["facebook/anli"]
    assert found.validation.premises == ["dev 1 0", "dev 2 0", "dev 3 0"]
    assert found.test.labels.tolist() == [0, 1, 2]


LOADERS: dict[str, tuple[Any, tuple[str, str]]] = {
    "mnist": (load_mnist, ("yann.lecun.com", "ylecun/mnist")),
    "cifar10": (load_cifar10, ("cs.toronto.edu", "uoft-cs/cifar10")),
    "cifar100": (load_cifar100, ("cs.toronto.edu", "uoft-cs/cifar100")),
    "imagenet": (load_image_folder, ("image-net.org", "clane9/imagenet-100")),
    "snli": (load_snli, ("nlp.stanford.edu/projects/snli", "stanfordnlp/snli")),
    "anli": (load_anli, ("github.com/facebookresearch/anli", "facebook/anli")),
}


@pytest.mark.parametrize("trouble", ["ConnectionError", "ModuleNotFoundError", "KeyError", "NotADirectoryError"])
@pytest.mark.parametrize("name", LOADERS)
def test_an_error_is_one_line_with_its_cause_and_both_sources(
    name: str, trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load, sources = LOADERS[name]
    path = tmp_path / "archive.tar.gz" if trouble == "NotADirectoryError" else None  # where a folder is expected
    if path is not None:
        path.touch()
    if trouble == "ModuleNotFoundError":
        monkeypatch.setitem(sys.modules, "datasets", None)
    else:
        odd = {"odd": sentences("a", [0])}
        play(monkeypatch, odd if trouble == "KeyError" else ConnectionError("no hub\n(LocalEntryNotFoundError)"))
    with pytest.raises(FileError if path else OSError, match="--data-dir") as caught:
        load(path)
    message = str(caught.value)
    assert all(part in message for part in (*sources, str(path or trouble)))
    assert "\n" not in message


def test_a_lack_of_memory_is_not_blamed_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, MemoryError())
    with pytest.raises(MemoryError):
        load_snli(None)
