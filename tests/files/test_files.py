"""Files of predictions: every format and shape that is read, every defect that is named, nothing half-written."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import metrics
from calibrant.files import FileError, read_predictions, whole_or_not_at_all, write_predictions
from calibrant.files.layout import Columns
from calibrant.files.read import fits_in_memory

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((40, 3)).astype(np.float32)
TARGET = RNG.integers(3, size=40)
P = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
Z, C = P.max(1), (P.argmax(1) == TARGET).astype(np.uint8)
BINARY = RNG.random(40)
LABEL = RNG.integers(2, size=40)
Array = np.ndarray[Any, Any]
ROW = b"logits_0,logits_2,target\n" + 3 * b"1,2,0\n"


def columns(name: str, values: Array) -> dict[str, Array]:
    return {f"{name}_{k}": values[:, k] for k in range(values.shape[1])}


CONTENTS: dict[str, tuple[dict[str, Array], dict[str, Any]]] = {
    # name: one array or column each, and the same as keywords of metrics.evaluate
    "logits": ({**columns("logits", LOGITS), "target": TARGET}, {"logits": LOGITS, "target": TARGET}),
    "probabilities": ({**columns("probabilities", P), "target": TARGET}, {"probabilities": P, "target": TARGET}),
    "pairs": ({"confidence": Z, "correct": C}, {"confidence": Z, "correct": C}),
    "binary": ({"probabilities": BINARY, "target": LABEL}, {"probabilities": BINARY, "target": LABEL}),
    "binary logit": ({"logits": LOGITS[:, 0], "target": LABEL}, {"logits": LOGITS[:, 0], "target": LABEL}),
}


def write_npz(path: Path, table: dict[str, Array]) -> None:
    stacked: dict[str, Any] = {name: values for name, values in table.items() if "_" not in name}
    for group in {name.split("_")[0] for name in table if "_" in name}:
        stacked[group] = np.stack([values for name, values in table.items() if name.startswith(group + "_")], 1)
    np.savez(path, **stacked)


def write_csv(path: Path, table: dict[str, Array]) -> None:
    rows = zip(*(values.tolist() for values in table.values()), strict=True)
    path.write_text("\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)]) + "\n")


def write_parquet(path: Path, table: dict[str, Array]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(table), path)


WRITERS: dict[str, Callable[[Path, dict[str, Array]], None]] = {
    ".npz": write_npz, ".csv": write_csv, ".parquet": write_parquet
}  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_holds_every_kind_of_prediction(tmp_path: Path, name: str, suffix: str) -> None:
    table, given = CONTENTS[name]
    path = tmp_path / f"predictions{suffix}"
    WRITERS[suffix](path, table)
    expected = metrics.evaluate(**given)
    for entry in metrics.evaluate(read_predictions(path)):
        assert entry.value == pytest.approx(expected[entry.key], rel=1e-5, abs=1e-7), entry.key


@pytest.mark.parametrize("kind", [pyarrow.list_(pyarrow.float32()), pyarrow.list_(pyarrow.float32(), 3)])
def test_parquet_lists(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "lists.parquet"
    table = pyarrow.table({"logits": pyarrow.array(LOGITS.tolist(), type=kind), "target": TARGET})
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    assert np.array_equal(
        read_predictions(path).confidence, metrics.predictions(logits=LOGITS, target=TARGET).confidence
    )


def test_names_can_be_given_and_are_then_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, test_logits=LOGITS, labels=TARGET, probabilities=P[::-1])
    read = read_predictions(path, Columns(logits="test_logits", target="labels"))
    assert np.array_equal(read.confidence, metrics.predictions(logits=LOGITS, target=TARGET).confidence)
    for wrong in (Columns(logits="nothing", target="labels"), Columns(logits="test_logits", target="nothing")):
        with pytest.raises(FileError, match="'nothing'"):
            read_predictions(path, wrong)


@pytest.mark.parametrize("content", [
    '\ufeff"confidence", correct\n"0.9", True\n0.5,FALSE\n0.7,true\n',
    "id,confidence,correct\n#a,0.9,1\nb,0.5,0\n#c,0.7,1\n",
    '\n"a\nnote",confidence,correct\n1,0.9,true\n2,0.5,0\n3,0.7,1\n',
], ids=["quotes, spaces and a byte order mark", "rows with a hash", "a header over two lines"])  # fmt: skip
def test_odd_tables(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(content, encoding="utf-8")
    read = read_predictions(path)
    assert read.confidence.tolist() == [0.9, 0.5, 0.7]
    assert read.correct.tolist() == [True, False, True]


def test_whole_and_decimal_numbers_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    decimal = pyarrow.array([0.5, 0.75, 1.0]).cast(pyarrow.decimal128(5, 2))
    pyarrow.parquet.write_table(pyarrow.table({"confidence": decimal, "correct": [1, 0, 1]}), path)
    assert read_predictions(path).confidence.tolist() == [0.5, 0.75, 1.0]
    pyarrow.parquet.write_table(pyarrow.table({"logits": [1, -2, 3], "target": [1, 0, 1]}), path)
    assert read_predictions(path).correct.all()


def cut_short(path: Path) -> None:
    np.savez(path, logits=np.zeros((1000, 10)), target=np.zeros(1000, int))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def single_array(path: Path) -> None:
    np.save(path.with_suffix(".npy"), Z)
    path.with_suffix(".npy").rename(path)


def text_member(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("logits", "no array")


def vast(path: Path) -> None:
    """A header that claims a thousand billion rows."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 10), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("logits.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def saved(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


def saved_parquet(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: pyarrow.parquet.write_table(pyarrow.table(arrays), path)


BAD: dict[str, tuple[str, bytes | Callable[[Path], object], str]] = {
    "missing": ("missing.npz", lambda path: None, "no such file"),
    "folder": ("d.npz", lambda path: path.mkdir(), "is a folder"),
    "suffix": ("predictions.txt", b"1", r"\.npz, \.npy"),
    "empty": ("empty.npz", b"", "is empty"),
    "not a zip": ("text.npz", b"hello, I am not a zip file", "savez"),
    "single array": ("one.npz", single_array, "single array"),
    "cut short": ("cut.npz", cut_short, "cut short"),
    "no arrays": ("none.npz", lambda path: zipfile.ZipFile(path, "w").close(), "no arrays"),
    "no kind": ("k.npz", saved(scores=P, target=TARGET), "'logits'"),
    "no correct": ("t.npz", saved(confidence=Z), "'correct'"),
    "lengths": ("l.npz", saved(logits=LOGITS, target=TARGET[:9]), "40 rows .* 9"),
    "nan": ("n.npz", saved(logits=np.where(LOGITS > 1, np.nan, LOGITS), target=TARGET), "finite"),
    "complex": ("x.npz", saved(logits=LOGITS.astype(complex), target=TARGET), "numbers"),
    "labels": ("y.npz", saved(logits=LOGITS, target=TARGET + 5), r"0\.\.2"),
    "scalar": ("y.npz", saved(logits=np.array(1.0), target=np.array(1)), "single number"),
    "two samples": ("two.npz", saved(confidence=Z[:2], correct=C[:2]), "got 2"),
    "binary file as csv": ("b.csv", bytes(range(256)), "text file"),
    "header only": ("h.csv", b"confidence,correct\n", "no rows"),
    "long row": ("w.csv", b"confidence,correct\n0.5,1\n0.3,0,9\n", "line 3 has 3 fields"),
    "no header": ("n.csv", b"0.5,1\n0.7,0\n", "begins with numbers"),
    "blank": ("n.csv", b"\n\n", "no line"),
    "twice": ("t.csv", b"confidence,correct,correct\n0.5,1,1\n", "2 columns 'correct'"),
    "long cell": ("l.csv", b"confidence,correct\n" + b"1" * 200_000 + b",1\n", "must lie in"),
    "pipe": ("p.npz", lambda path: os.mkfifo(path), "regular file"),
    "not arrays": ("z.npz", text_member, "not an array"),
    "vast": ("v.npz", vast, "memory"),
    "lists and plain": (
        "m.parquet", saved_parquet(logits_0=[[1.0], [2.0], [3.0]], logits_1=[1.0, 2.0, 3.0], target=[0, 1, 1]),
        "plain numbers",
    ),
    "classes": ("c.csv", ROW, "'logits_1'"),
    "not parquet": ("p.parquet", b"PAR1 but no", "Parquet"),
    "nulls": ("p.parquet", saved_parquet(confidence=[0.5, None, 0.2], correct=[1, 0, 1]), "1 empty value:"),
    "ragged": ("p.parquet", saved_parquet(logits=[[1.0], [1.0, 2], [3.0]], target=[0, 0, 1]), "one length"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_defect_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    file, content, message = BAD[name]
    path = tmp_path / file
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        read_predictions(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [*WRITERS, ".NPZ", ".CSV", ".PARQUET"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_probabilities_survive_a_round_trip(tmp_path: Path, suffix: str, kind: type) -> None:
    path = tmp_path / "new folder" / f"out{suffix}"
    p = (P / P.sum(1, keepdims=True)).astype(kind)
    write_predictions(path, p, TARGET)
    read = read_predictions(path)
    assert read.probabilities is not None
    assert np.array_equal(read.probabilities.astype(kind), p)
    assert np.array_equal(np.asarray(read.target), TARGET)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left on device"), FileError)]
)
def test_nothing_is_left_of_a_write_that_fails(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    path = tmp_path / "result.txt"
    path.write_text("before")

    def interrupted() -> None:
        with whole_or_not_at_all(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(raised) as caught:
        interrupted()
    assert raised is not FileError or "result.txt" in str(caught.value)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed_and_a_device_refused(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.npz", tmp_path / "link.npz", tmp_path / "pipe.npz"
    target.write_text("before")
    link.symlink_to(target)
    os.mkfifo(pipe)
    write_predictions(link, P, TARGET)
    assert link.is_symlink()
    assert len(read_predictions(target)) == 40
    with pytest.raises(FileError, match="regular file"):
        write_predictions(pipe, P, TARGET)
    assert pipe.is_fifo()


def test_a_name_that_is_the_default_still_chooses(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, logits=LOGITS, probabilities=P[:, ::-1], target=TARGET, confidence=Z, correct=C)
    assert read_predictions(path).logits is not None
    assert read_predictions(path, Columns(confidence="confidence")).classes is None
    assert read_predictions(path, Columns(probabilities="probabilities")).logits is None


def test_a_written_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    with whole_or_not_at_all(tmp_path / "ours") as temporary:
        temporary.write_text(json.dumps(1))
    modes = {oct((tmp_path / name).stat().st_mode) for name in ("usual", "ours")}
    assert len(modes) == 1


def test_what_fits_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.parquet"
    write_parquet(path, {"confidence": Z, "correct": C})
    assert fits_in_memory(path)
    lists = tmp_path / "lists.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"logits": LOGITS.tolist(), "target": TARGET}), lists)
    monkeypatch.setattr("calibrant.files.read.free_memory", lambda: 4 * 40 * 2 * 8)
    assert not fits_in_memory(path)
    monkeypatch.setattr("calibrant.files.read.free_memory", lambda: 4 * 40 * 4 * 8)
    assert fits_in_memory(path)
    assert not fits_in_memory(lists)  # three numbers in a list are three numbers
