"""CIFAR files in the published layout, byte for byte, and pickles that must not be run."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.files import FileError
from calibrant_lab.data import cifar
from calibrant_lab.data.cifar import load_cifar10, load_cifar100
from calibrant_lab.data.sources import md5
from tests.lab.pickles import Intruder

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def published(labels_name: str, labels: list[int], pixels: Bytes) -> bytes:
    """A batch as Python 2 and the NumPy of its day pickled it (protocol 2, strings of bytes)."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    rows, columns = pixels.shape
    shape = b"M" + rows.to_bytes(2, "little") + b"M" + columns.to_bytes(2, "little") + b"\x86"
    array: bytes = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + pixels.size.to_bytes(4, "little") + pixels.tobytes() + b"tb"
    )  # fmt: skip
    whole: bytes = (
        b"\x80\x02}(" + text("batch_label") + text("a batch") + text(labels_name) + b"](" + numbers + b"e"
        + text("data") + array + text("filenames") + b"](" + text("x.png") + b"eu."
    )  # fmt: skip
    return whole


def batch(seed: int, classes: int) -> tuple[list[int], Bytes]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, classes, 4).tolist(), generator.integers(0, 256, (4, 3072), dtype=np.uint8)


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with six small batches that pass for the published ones."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    checksums = {}
    for seed, name in enumerate(cifar.CIFAR10_CHECKSUMS):
        content = published("labels", *batch(seed, 10))
        (folder / name).write_bytes(content)
        checksums[name] = md5(content)
    monkeypatch.setattr(cifar, "CIFAR10_CHECKSUMS", checksums)
    return folder


def replace(path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file and let it pass for the published one."""
    path.write_bytes(content)
    monkeypatch.setitem(cifar.CIFAR10_CHECKSUMS, path.name, md5(content))


@pytest.mark.parametrize("above", [True, False])
def test_cifar10_joins_five_batches(cifar10: Path, above: bool) -> None:
    train, test, classes = load_cifar10(cifar10.parent if above else cifar10)
    assert (train.pixels.shape, test.pixels.shape, classes) == ((20, 3, 32, 32), (4, 3, 32, 32), 10)
    assert train.pixels.is_contiguous(memory_format=torch.channels_last)
    for found, seeds in ((train, range(5)), (test, [5])):
        labels, pixels = zip(*(batch(seed, 10) for seed in seeds), strict=True)
        assert found.labels.tolist() == [label for one in labels for label in one]
        assert np.array_equal(found.pixels.numpy(), np.concatenate(pixels).reshape(-1, 3, 32, 32))


def test_cifar100_takes_the_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {name: published("fine_labels", *batch(k, 100)) for k, name in enumerate(("train", "test"))}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(cifar, "CIFAR100_CHECKSUMS", {name: md5(content) for name, content in contents.items()})
    train, test, classes = load_cifar100(tmp_path)
    assert (train.labels.tolist(), test.labels.tolist(), classes) == (batch(0, 100)[0], batch(1, 100)[0], 100)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_does_harm_is_refused_and_does_none(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    intruder = Intruder(tmp_path / "harm")
    for data in (intruder, np.array([intruder], dtype=object), np.random.default_rng(0)):
        content = pickle.dumps({b"labels": [0], b"data": data}, protocol=protocol)
        replace(cifar10 / "data_batch_3", content, monkeypatch)
        with pytest.raises(FileError, match="data_batch_3"):
            load_cifar10(cifar10)
    assert not (tmp_path / "harm").exists()


LABELS, PIXELS = batch(0, 10)
DAMAGED = {
    "cut": published("labels", LABELS, PIXELS)[:-200],
    "objects": published("labels", LABELS, PIXELS).replace(b"u1", b"O8"),
    "other labels": published("names", LABELS, PIXELS),
    "few labels": published("labels", LABELS[:3], PIXELS),
    "label 10": published("labels", [1, 2, 3, 10], PIXELS),
    "small images": published("labels", LABELS, PIXELS[:, :3000]),
    "fewer bytes than the shape": published("labels", LABELS, PIXELS).replace(b"M\x04\x00M", b"M\x05\x00M"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named(cifar10: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    replace(cifar10 / "test_batch", DAMAGED[name], monkeypatch)
    with pytest.raises(FileError, match=r"test_batch.*toronto"):
        load_cifar10(cifar10)


def test_a_changed_file_is_refused_before_it_is_unpickled(cifar10: Path, tmp_path: Path) -> None:
    path = cifar10 / "data_batch_1"
    expected = md5(path.read_bytes())
    path.write_bytes(pickle.dumps(Intruder(tmp_path / "harm")))
    with pytest.raises(FileError, match=f"{md5(path.read_bytes())}.*{expected}"):
        load_cifar10(cifar10)
    assert not (tmp_path / "harm").exists()


def test_missing_batches_are_named(cifar10: Path) -> None:
    (cifar10 / "data_batch_2").unlink()
    with pytest.raises(FileError, match=f"data_batch_2.*{cifar10.parent}.*uoft-cs/cifar10"):
        load_cifar10(cifar10.parent)
