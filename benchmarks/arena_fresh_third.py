"""Third generation of the arena's fresh pairs, of two classes: tables and sources of networks that no earlier one has.

They were made when `auto` got smooth scaling as a member for two classes, and are for judging that choice. All of them
are held out, and split once; the models of a table are chosen as in `benchmarks.arena_fresh_second`. Networks are made
by the recipes of `benchmarks.arena_fresh_networks`, from data that packages carry: names of airports (airportsdata),
words of languages (pyspellchecker), words with a sentiment (vaderSentiment), nouns and verbs (lemminflect), common and
rare words (wordfreq), first and last names (names), characters of captcha, and patches of scikit-image's pictures.
"""

import gzip
import json
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from benchmarks.arena_fresh_second import grams, words
from benchmarks.arena_fresh_sources import Rows, cut
from benchmarks.arena_fresh_tables import IMBALANCED, Table

KEEL = {
    name: Table(IMBALANCED, "")
    for name in (
        "abalone9-18", "ecoli1", "flare-F", "haberman", "page-blocks0", "winequality-red-4", "yeast1", "yeast3",
    )
}  # fmt: skip
TABLES = {
    **KEEL,
    "Airlines": Table("Stat2Data", "OnTime"),
    "anes_vote84": Table("stevedata", "vote", ("uid",)),
    "charity": Table("wooldridge", "respond", ("gift",)),
    "colon": Table("survival", "status", ("id", "study", "time", "etype")),
    "Cowles": Table("carData", "volunteer"),
    "CPS1988": Table("AER", "parttime"),
    "credit_cards": Table("causaldata", "LateSept"),
    "Dee04": Table("stevedata", "register", ("schoolid",)),
    "DoctorVisits": Table("AER", "private", ("freepoor", "freerepat")),
    "fertil2": Table("wooldridge", "usemeth", ("knowmeth",)),
    "guImmun": Table("mlmRev", "immun", ("kid", "mom", "comm")),
    "injury": Table("wooldridge", "hosp"),
    "Kershaw": Table("Stat2Data", "Swing", ("BatterNumber", "Outcome", "Class", "Result", "Time", "ABEvent")),
    "KosteckiDillon": Table("carData", "headache", ("id",)),
    "MathPlacement": Table("Stat2Data", "CourseSuccess", ("Student", "Grade")),
    "mgus2": Table("survival", "death", ("id", "ptime", "pstat", "futime")),
    "muscatine": Table("geepack", "obese", ("id", "numobese")),
    "NCbirths": Table("Stat2Data", "Premie", ("ID", "Weeks")),
    "nlswork": Table("sampleSelection", "union", ("idcode",)),
    "NMES1988": Table("AER", "insurance"),
    "ohio": Table("geepack", "resp", ("id",)),
    "PSID7682": Table("AER", "union", ("id",)),
    "ResumeNames": Table("AER", "call"),
    "rotterdam": Table("survival", "death", ("pid", "rtime", "recur", "dtime")),
    "thornton_hiv": Table("causaldata", "got", ("villnum",)),
    "TV16": Table("stevedata", "votetrump", ("uid",)),
    "twoyear": Table("wooldridge", "BA", ("id", "AA", "jc", "univ", "totcoll")),
    "Whickham2": Table("Stat2Data", "Outcome", ("AgeGroup", "Alive")),
    "YouthRisk": Table("Stat2Data", "ride.alc.driver"),
}

Labels = Callable[[Tensor], Tensor]
# Words or names of each class, at most.
OF_A_CLASS = 8000
COUNTRIES = ("US", "BR", "AU", "CA")
LANGUAGES = ("es", "pt", "de", "nl", "en", "fr")
SIMILAR = "0123456789OIZEASGTBP"
PICTURES = ("brick", "grass", "gravel", "camera")
PATCH = 14


def _two(first: int, second: int) -> Labels:
    return lambda y: torch.where((y == first) | (y == second), (y == second).long(), -1)


# What stands before the first hyphen is the source. Labels of -1 leave a row out.
TASKS: dict[str, Labels] = {
    "airports-america": lambda y: (y != 0).long(),
    "airports-brazil": _two(1, 2),
    "captchas-digit": lambda y: (y < 10).long(),
    "captchas-round": _two(0, 10),
    "frequencies-common": lambda y: y,
    "languages-english": _two(4, 5),
    "languages-german": _two(2, 3),
    "languages-spanish": _two(0, 1),
    "patches-gravel": _two(1, 2),
    "patches-stone": lambda y: ((y == 0) | (y == 2)).long(),
    "people-last": lambda y: (y == 2).long(),
    "people-women": _two(0, 1),
    "sentiments-positive": lambda y: y,
    "speech-verb": lambda y: y,
}


def names() -> list[str]:
    """Every table."""
    return sorted(TABLES, key=str.lower)


def load(source: str) -> Rows:
    """Rows of a source."""
    return {
        "airports": _airports, "captchas": _captchas, "frequencies": _frequencies, "languages": _languages,
        "patches": _patches, "people": _people, "sentiments": _sentiments, "speech": _speech,
    }[source]()  # fmt: skip


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
        image = made.generate_image(SIMILAR[label]).convert("L").resize((PATCH, PATCH))
        images.append(np.asarray(image, dtype=np.float32) / 255)
    x = np.stack(images)[:, None] + draw.normal(0, 0.1, (len(images), 1, PATCH, PATCH)).astype(np.float32)
    return cut(torch.from_numpy(x) - 0.5, torch.from_numpy(labels), 7000, 7000)


def _frequencies() -> Rows:
    """English words: the 10,000 most common, and those from 30,000 to 40,000."""
    from wordfreq import top_n_list

    found = [word for word in top_n_list("en", 40_000) if word.isalpha()]
    return _of_classes([found[:10_000], found[-10_000:]], train=7000, other=9000)


def _languages() -> Rows:
    """Words of six languages, the most frequent of each."""
    found = []
    for language in LANGUAGES:
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
        top, left = (draw.integers(size - PATCH) for size in picture.shape)
        patch = np.rot90(picture[top : top + PATCH, left : left + PATCH], int(draw.integers(4)))
        rows.append((patch - patch.mean()) / (patch.std() + 0.05))
    x = np.stack(rows)[:, None] + draw.normal(0, 0.5, (len(rows), 1, PATCH, PATCH)).astype(np.float32)
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
