"""The same structures from the Hugging Face hub, which is played by data sets made in memory."""

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
Fetched = dict[str, Any]


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


def play(monkeypatch: pytest.MonkeyPatch, splits: Fetched) -> list[str]:
    """Have the hub deliver this; returns the ids asked for."""
    asked: list[str] = []

    def load_dataset(name: str) -> Fetched:
        asked.append(name)
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
    assert asked == [hub_id]
    assert found.classes == classes
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
    assert asked == ["clane9/imagenet-100"]
    assert found.classes == 3
    assert found.train.labels.tolist() == [0, 1, 2, 0, 1]
    assert [len(part) for part in (found.train.augmented, found.train.dataset, found.test.dataset)] == [5, 5, 4]
    image, label = found.test.dataset[3]
    assert (image.shape, label) == ((3, 32, 32), 0)
    assert found.train.augmented[0][0].shape == (3, 32, 32)


def test_snli_drops_pairs_without_an_agreed_label(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": sentences("a", [0, -1, 2]), "validation": sentences("b", [1]), "test": sentences("c", [-1, 1])}
    asked = play(monkeypatch, splits)
    found = load_snli(None)
    assert asked == ["stanfordnlp/snli"]
    assert found.train.premises == ["a 0", "a 2"]
    assert found.train.labels.tolist() == [0, 2]
    assert found.test.hypotheses == ["so 1"]


def test_anli_joins_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {f"{part}_r{k}": sentences(f"{part} {k}", [k - 1]) for part in ("train", "dev", "test") for k in (1, 2, 3)}
    asked = play(monkeypatch, splits)
    found = load_anli(None)
    assert asked == ["facebook/anli"]
    assert found.validation.premises == ["dev 1 0", "dev 2 0", "dev 3 0"]
    assert found.test.labels.tolist() == [0, 1, 2]


LOADERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "mnist": (load_mnist, ("train-images-idx3-ubyte.gz", "yann.lecun.com", "ylecun/mnist")),
    "cifar10": (load_cifar10, ("cifar-10-batches-py", "cs.toronto.edu", "uoft-cs/cifar10")),
    "cifar100": (load_cifar100, ("cifar-100-python", "cs.toronto.edu", "uoft-cs/cifar100")),
    "imagenet": (load_image_folder, ("val/<class>/*.JPEG", "image-net.org", "clane9/imagenet-100")),
    "snli": (load_snli, ("snli_1.0_train.jsonl", "nlp.stanford.edu/projects/snli", "stanfordnlp/snli")),
    "anli": (load_anli, ("train.jsonl", "github.com/facebookresearch/anli", "facebook/anli")),
}


@pytest.mark.parametrize("trouble", ["no network", "no package", "other columns"])
@pytest.mark.parametrize("name", LOADERS)
def test_trouble_is_one_sentence_that_says_what_to_do(name: str, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load, parts = LOADERS[name]
    match trouble:
        case "no network":

            def load_dataset(name: str) -> None:
                raise ConnectionError(f"Couldn't reach {name} on the Hub\n(LocalEntryNotFoundError)")

            monkeypatch.setattr(datasets, "load_dataset", load_dataset)
            cause = "ConnectionError: Couldn't reach"
        case "no package":
            monkeypatch.setitem(sys.modules, "datasets", None)
            cause = "ModuleNotFoundError"
        case _:
            play(monkeypatch, {"odd": sentences("a", [0])})
            cause = "KeyError"
    with pytest.raises(OSError, match="could not be loaded from the Hugging Face hub") as caught:
        load(None)
    message = str(caught.value)
    for part in (*parts, cause, "--data-dir", "pip install 'calibrant[hf]'"):
        assert part in message
    assert "\n" not in message


def test_a_lack_of_memory_is_not_blamed_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str) -> None:
        raise MemoryError

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(MemoryError):
        load_snli(None)


@pytest.mark.parametrize("name", LOADERS)
def test_a_file_in_place_of_a_folder_is_told(name: str, tmp_path: Path) -> None:
    load, parts = LOADERS[name]
    path = tmp_path / "archive.tar.gz"
    path.touch()
    with pytest.raises(FileError, match=rf"^{path}: is a file, not a folder .* put them in a folder, or ") as caught:
        load(path)
    for part in parts:
        assert part in str(caught.value)
