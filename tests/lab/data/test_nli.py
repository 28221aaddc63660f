"""SNLI and ANLI as published, and lines that are not."""

import gzip
import json
from pathlib import Path

import pytest

from calibrant.files import FileError
from calibrant_lab.data.nli import load_anli, load_snli
from tests.real_data import real

SNLI_PARTS = {"train": 6, "dev": 5, "test": 4}
NAMES = ["entailment", "neutral", "contradiction", "-"]


def lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def put(path: Path, content: bytes, *, packed: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        Path(f"{path}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def snli(folder: Path, *, packed: bool) -> None:
    for part, count in SNLI_PARTS.items():
        rows = [
            # A line separator of Unicode's is not the end of a line of JSON.
            {"gold_label": NAMES[k % 4], "sentence1": f"{part} {k}\u2028é", "sentence2": f"so {k}", "pairID": "x"}
            for k in range(count)
        ]
        put(folder / f"snli_1.0_{part}.jsonl", lines(rows), packed=packed)


def anli(folder: Path, *, packed: bool) -> None:
    for part in ("train", "dev", "test"):
        for k in (1, 2, 3):
            rows = [{"context": f"{part} {k}", "hypothesis": f"{label}?", "label": label} for label in "cen"[:k]]
            put(folder / f"R{k}" / f"{part}.jsonl", lines(rows), packed=packed)


@pytest.mark.parametrize(("below", "packed"), [(".", True), ("snli_1.0", False)])
def test_snli_drops_pairs_without_an_agreed_label(tmp_path: Path, below: str, packed: bool) -> None:
    snli(tmp_path / below, packed=packed)
    data = load_snli(tmp_path)
    assert data.classes == 3
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1]
    assert data.train.premises[3:] == ["train 4\u2028é", "train 5\u2028é"]
    assert data.validation.labels.tolist() == [0, 1, 2, 0]
    assert data.test.hypotheses == ["so 0", "so 1", "so 2"]


@pytest.mark.parametrize(("below", "packed"), [("anli_v1.0", True), (".", False)])
def test_anli_joins_its_rounds(tmp_path: Path, below: str, packed: bool) -> None:
    anli(tmp_path / below, packed=packed)
    data = load_anli(tmp_path)
    assert data.classes == 3
    for part, found in zip(("train", "dev", "test"), data[:3], strict=True):
        assert found.premises == [f"{part} 1", f"{part} 2", f"{part} 2", *[f"{part} 3"] * 3]
        assert found.hypotheses == ["c?", "c?", "e?", "c?", "e?", "n?"]
        assert found.labels.tolist() == [2, 2, 0, 2, 0, 1]


GOOD = b'{"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}\n'
DAMAGED = {
    "cut": b'{"gold_label": "neutral", "sentence1": "a", "sen',
    "no hypothesis": b'{"gold_label": "neutral", "sentence1": "a"}',
    "label": b'{"gold_label": "maybe", "sentence1": "a", "sentence2": "b"}',
    "label list": b'{"gold_label": ["neutral"], "sentence1": "a", "sentence2": "b"}',
    "number": b'{"gold_label": "neutral", "sentence1": 5, "sentence2": "b"}',
    "list": b"[1, 2]",
    "not UTF-8": b'{"gold_label": "neutral", "sentence1": "\xff", "sentence2": "b"}',
    "surrogate": b'{"gold_label": "neutral", "sentence1": "a", "sentence2": "\\ud800 b"}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named_by_its_number(tmp_path: Path, name: str) -> None:
    snli(tmp_path, packed=False)
    path = tmp_path / "snli_1.0_dev.jsonl"
    path.write_bytes(GOOD + b"\n" + DAMAGED[name] + b"\n" + GOOD)
    with pytest.raises(FileError, match=f"{path}.*line 3.*nlp.stanford"):
        load_snli(tmp_path)


def test_an_empty_broken_or_missing_file_is_named(tmp_path: Path) -> None:
    snli(tmp_path, packed=True)
    path = tmp_path / "snli_1.0_test.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(FileError, match=f"{path}.*pair"):
        load_snli(tmp_path)
    path.write_bytes(gzip.compress(GOOD)[:20])
    with pytest.raises(FileError, match=f"{path}.*truncated"):
        load_snli(tmp_path)
    anli(tmp_path, packed=True)
    (tmp_path / "R2/dev.jsonl.gz").unlink()
    with pytest.raises(FileError, match=r"R2/dev\.jsonl.*facebook/anli"):
        load_anli(tmp_path)
    with pytest.raises(FileError, match=r"snli_1.0_train.*snli_1.0_test"):
        load_snli(tmp_path / "R1")


def test_the_real_snli_and_anli(tmp_path: Path) -> None:
    folder = real("nli")
    names = {"train": "snli_train_subset_2k", "dev": "snli_1.0_dev", "test": "snli_1.0_test"}
    for part, name in names.items():
        (tmp_path / f"snli_1.0_{part}.jsonl.gz").symlink_to(folder / f"{name}.jsonl.gz")
    data = load_snli(tmp_path)
    assert [len(part.labels) for part in (data.validation, data.test)] == [9842, 9824]  # as published
    assert data.validation.labels.bincount().tolist() == [3329, 3235, 3278]
    for k in (1, 2, 3):
        (tmp_path / f"R{k}").mkdir()
        for part, name in {"train": "dev", "dev": "dev", "test": "test"}.items():
            (tmp_path / f"R{k}/{part}.jsonl.gz").symlink_to(folder / f"anli_R{k}_{name}.jsonl.gz")
    assert len(load_anli(tmp_path).test.labels) == 3200
