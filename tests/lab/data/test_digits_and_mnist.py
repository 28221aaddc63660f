"""The two sets of digits."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.files import FileError
from calibrant_lab.data import mnist
from calibrant_lab.data.digits import load_digits
from calibrant_lab.data.mnist import load_mnist
from calibrant_lab.data.sources import md5

SHAPES = {
    "train-images-idx3-ubyte": (30, 28, 28),
    "train-labels-idx1-ubyte": (30,),
    "t10k-images-idx3-ubyte": (10, 28, 28),
    "t10k-labels-idx1-ubyte": (10,),
}


def test_digits_without_noise_are_those_of_scikit_learn_enlarged() -> None:
    from PIL import Image
    from sklearn.datasets import load_digits as original

    original_images = original().images
    train, test, classes = load_digits(noise=0.0)
    assert (len(train.labels), len(test.labels), classes) == (1437, 360, 10)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    assert torch.cat([test.labels, train.labels]).tolist() == original().target[order].tolist()
    found = torch.cat([test.pixels, train.pixels])[:, 0].numpy()
    for pixels, index in zip(found, order, strict=True):
        small = Image.fromarray((original_images[index] * 255 / 16).astype(np.float32))
        assert abs(np.array(small.resize((32, 32), Image.Resampling.BILINEAR)) - pixels).max() < 0.501


def test_digits_are_the_same_each_time_whatever_the_global_seed() -> None:
    torch.manual_seed(1)
    first = load_digits()
    torch.manual_seed(2)
    second = load_digits()
    assert torch.equal(first.train.pixels, second.train.pixels)
    assert torch.equal(first.test.labels, second.test.labels)
    assert not torch.equal(first.train.pixels, load_digits(noise=0.0).train.pixels)
    with pytest.raises(ValueError, match="noise"):
        load_digits(noise=-1)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Idx files with made-up content, which pass for the published ones."""
    generator = np.random.default_rng(0)
    contents = {}
    for name, shape in SHAPES.items():
        values = generator.integers(0, 10 if "labels" in name else 256, shape, dtype=np.uint8)
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        contents[name] = bytes([0, 0, 8, len(shape)]) + sizes + values.tobytes()
    checksums = {name: (md5(gzip.compress(content, mtime=0)), md5(content)) for name, content in contents.items()}
    monkeypatch.setattr(mnist, "CHECKSUMS", checksums)
    return contents


def write(folder: Path, files: dict[str, bytes], level: int | None) -> None:
    """Write the files as they are, or compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if level is None:
            (folder / name).write_bytes(content)
        else:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, level, mtime=0))


@pytest.mark.parametrize(("below", "level"), [(".", 9), ("MNIST/raw", None), (".", 1)])
def test_mnist_is_read_and_resized_as_pillow_does(
    tmp_path: Path, files: dict[str, bytes], below: str, level: int | None
) -> None:
    from PIL import Image

    write(tmp_path / below, files, level)
    train, test, classes = load_mnist(tmp_path)
    assert (train.pixels.shape, test.pixels.shape, classes) == ((30, 1, 32, 32), (10, 1, 32, 32), 10)
    assert train.labels.tolist() == list(files["train-labels-idx1-ubyte"][8:])
    assert test.labels.dtype == torch.int64
    originals = np.frombuffer(files["t10k-images-idx3-ubyte"][16:], dtype=np.uint8).reshape(10, 28, 28)
    for original, resized in zip(originals, test.pixels[:, 0], strict=True):
        expected = np.array(Image.fromarray(original).resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
        assert abs(expected - resized.numpy()).max() <= 1
    assert torch.equal(load_mnist(tmp_path, size=28).test.pixels[:, 0], torch.from_numpy(originals.copy()))


def test_a_changed_file_is_named_with_both_checksums(tmp_path: Path, files: dict[str, bytes]) -> None:
    changed = files | {"t10k-labels-idx1-ubyte": files["t10k-labels-idx1-ubyte"][:-1] + b"\x0b"}
    write(tmp_path / "packed", changed, 9)
    write(tmp_path / "plain", changed, None)
    path = tmp_path / "packed/t10k-labels-idx1-ubyte.gz"
    of_packed, of_payload = mnist.CHECKSUMS["t10k-labels-idx1-ubyte"]
    with pytest.raises(FileError, match=f"{path}.*{md5(path.read_bytes())}.*{of_packed}.*lecun"):
        load_mnist(tmp_path / "packed")
    with pytest.raises(FileError, match=of_payload):
        load_mnist(tmp_path / "plain")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileError, match=f"{path}.*truncated"):
        load_mnist(tmp_path / "packed")


def test_missing_files_are_named_with_where_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").touch()
    with pytest.raises(FileError, match=r"(?s)\A.*train-labels.*t10k-labels.*MNIST/raw.*lecun.*ylecun/mnist[^\n]*\Z"):
        load_mnist(tmp_path)
    with pytest.raises(FileError, match="nowhere"):
        load_mnist(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x01\x00", b"\x00\x00\x08\x01\x00\x00\x00\x02\x01", b"PNG..."])
def test_what_is_no_idx_file_is_refused(content: bytes) -> None:
    with pytest.raises(FileError, match=r"idx|values"):
        mnist.parse_idx(Path("x"), content)
