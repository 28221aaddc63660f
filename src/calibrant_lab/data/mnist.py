"""MNIST from its four idx files."""

import math
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.files import FileError
from calibrant_lab.data import hub
from calibrant_lab.data.images import ImageData, Images
from calibrant_lab.data.sources import Source, find_files, md5, unpacked, wrong_checksum

# Published checksums of the .gz file, and of its content.
CHECKSUMS = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
}
SOURCE = Source(
    name="MNIST",
    files="train-images-idx3-ubyte.gz and the other three idx files, gzipped or not,",
    site="http://yann.lecun.com/exdb/mnist/ (mirror: https://ossci-datasets.s3.amazonaws.com/mnist/)",
    hub="ylecun/mnist",
)


def load_mnist(folder: Path | None, size: int = 32) -> ImageData:
    """60,000 training and 10,000 test digits, in one channel, resized bilinearly from 28×28."""
    if folder is None:
        train, test = hub.fetch_images(SOURCE, image="image", label="label")
    else:
        paths = find_files(folder, "MNIST/raw", list(CHECKSUMS), SOURCE)
        parts = [_read(path, name) for name, path in zip(CHECKSUMS, paths, strict=True)]
        train, test = (Images(pixels.unsqueeze(1), labels.long()) for pixels, labels in (parts[:2], parts[2:]))
    # On bytes, torch rounds like Pillow: equal on all of MNIST at 32 pixels, within one grey level at other sizes.
    resized = partial(F.interpolate, size=(size, size), mode="bilinear", antialias=True)
    return ImageData(Images(resized(train.pixels), train.labels), Images(resized(test.pixels), test.labels), classes=10)


def _read(path: Path, name: str) -> Tensor:
    content = path.read_bytes()
    payload = unpacked(path, content, SOURCE)
    of_packed, of_payload = CHECKSUMS[name]
    # The checksum of the content is enough, since the file may have been compressed again.
    if md5(payload) != of_payload:
        raise wrong_checksum(path, of_payload if payload is content else of_packed, md5(content), SOURCE)
    return parse_idx(path, payload)


def parse_idx(path: Path, payload: bytes) -> Tensor:
    """Parse an idx file: two zeros, type, number of dimensions, their sizes, then the values."""
    if payload[:3] != b"\x00\x00\x08" or len(payload) < 4 + 4 * payload[3]:
        raise FileError(path, "is not an idx file of bytes")
    start = 4 + 4 * payload[3]
    shape = [int.from_bytes(payload[place : place + 4], "big") for place in range(4, start, 4)]
    if len(payload) != start + math.prod(shape):
        raise FileError(path, f"declares {math.prod(shape)} values but has {len(payload) - start}: is it truncated?")
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8, offset=start).view(shape)
