"""Natural language inference: SNLI and ANLI from their published JSON lines."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from calibrant.files import FileError
from calibrant_lab.data import hub
from calibrant_lab.data.sources import Source, find_files, unpacked
from calibrant_lab.data.text import Pairs, TextData

SNLI = Source(
    name="SNLI",
    files="snli_1.0_train.jsonl, snli_1.0_dev.jsonl and snli_1.0_test.jsonl, gzipped or not,",
    site="https://nlp.stanford.edu/projects/snli/",
    hub="stanfordnlp/snli",
)
ANLI = Source(
    name="ANLI",
    files="R1, R2 and R3, each with train.jsonl, dev.jsonl and test.jsonl, gzipped or not,",
    site="https://github.com/facebookresearch/anli",
    hub="facebook/anli",
)


class Fields(NamedTuple):
    """Field names of a JSON line; a pair with label None is left out."""

    premise: str
    hypothesis: str
    label: str
    labels: Mapping[str, int | None]


SNLI_FIELDS = Fields(
    "sentence1", "sentence2", "gold_label", {"entailment": 0, "neutral": 1, "contradiction": 2, "-": None}
)
ANLI_FIELDS = Fields("context", "hypothesis", "label", {"e": 0, "n": 1, "c": 2})
PARTS, ROUNDS = ("train", "dev", "test"), (1, 2, 3)


def load_snli(folder: Path | None) -> TextData:
    """SNLI: 549,367 training, 9,842 validation and 9,824 test pairs, all with an agreed label."""
    names = [[f"snli_1.0_{part}.jsonl"] for part in PARTS]
    return _load(folder, "snli_1.0", names, [["train"], ["validation"], ["test"]], SNLI_FIELDS, SNLI)


def load_anli(folder: Path | None) -> TextData:
    """Adversarial NLI, all three rounds: 162,865 training, 3,200 validation and 3,200 test pairs."""
    names = [[f"R{k}/{part}.jsonl" for k in ROUNDS] for part in PARTS]
    return _load(folder, "anli_v1.0", names, [[f"{part}_r{k}" for k in ROUNDS] for part in PARTS], ANLI_FIELDS, ANLI)


def _load(
    folder: Path | None, below: str, names: list[list[str]], splits: list[list[str]], fields: Fields, source: Source
) -> TextData:
    if folder is None:
        parts = hub.fetch_pairs(source, splits)
    else:
        paths = iter(find_files(folder, below, [name for part in names for name in part], source))
        parts = [_pairs(list(islice(paths, len(part))), fields, source) for part in names]
    train, validation, test = parts
    return TextData(train, validation, test, classes=3)


def _pairs(paths: list[Path], fields: Fields, source: Source) -> Pairs:
    rows = [row for path in paths for row in _rows(path, fields, source)]
    if not rows:
        raise FileError(paths[0], f"contains no labelled pair: download it again from {source.site}")
    premises, hypotheses, labels = zip(*rows, strict=True)
    return Pairs(list(premises), list(hypotheses), torch.tensor(labels))


def _rows(path: Path, fields: Fields, source: Source) -> Iterator[tuple[str, str, int]]:
    for number, line in enumerate(unpacked(path, path.read_bytes(), source).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            premise, hypothesis, name = row[fields.premise], row[fields.hypothesis], row[fields.label]
            label = fields.labels[name]
            if not (isinstance(premise, str) and isinstance(hypothesis, str)):
                raise TypeError("sentences must be text")
            f"{premise}{hypothesis}".encode()  # tokenizers do not accept half of a surrogate pair
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            expected = f"{fields.premise}, {fields.hypothesis} and {fields.label} ({', '.join(fields.labels)})"
            raise FileError(
                path, f"line {number} is damaged: expected JSON with {expected}; download it again from {source.site}"
            ) from error
        if label is not None:
            yield premise, hypothesis, label
