"""Files as people have them: each layout means what its names say, and what is assumed is told."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from calibrant.files import FileError, Source, read_predictions, read_source
from calibrant.files.layout import Columns
from calibrant.files.write import write_calibrated
from calibrant.metrics.scale import statistics_duckdb

CONFIDENCE = [0.9, 0.5, 0.7]
CORRECT = [1, 0, 1]
PAIRS = "confidence,correct\n0.9,1\n0.5,0\n0.7,1\n"
ROWS = [{"confidence": z, "correct": c} for z, c in zip(CONFIDENCE, CORRECT, strict=True)]
LABELS = ("cat", "dog", "dog")
P = softmax(np.random.default_rng(0).normal(size=(12, 3)), 1)
CAT_AND_DOG = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(rows: Sequence[Any]) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


def read(path: Path, **names: Any) -> Source:
    return read_source(path, Columns(**names), labelled=True)


def noted(source: Source, *tokens: str) -> bool:
    """Whether a notice has all of these."""
    return any(all(token in notice for token in tokens) for notice in source.notices)


TEXTS: dict[str, tuple[str, str | bytes]] = {
    "tabs": ("p.tsv", PAIRS.replace(",", "\t")),
    "semicolons": ("p.csv", PAIRS.replace(",", ";")),
    "decimal commas": ("p.csv", "\ufeff" + PAIRS.replace(",", ";").replace(".", ",").replace("\n", "\r\n")),
    "Excel's hint": ("p.csv", "sep=;\n" + PAIRS.replace(",", ";")),
    "a comment": ("p.csv", "# made by hand\n" + PAIRS),
    "numpy.savetxt": ("p.csv", "# " + PAIRS),
    "UTF-16": ("p.csv", b"\xff\xfe" + PAIRS.encode("utf-16-le")),
    "Latin-1": ("p.csv", "confidence,correct,café\n0.9,1,é\n0.5,0,ü\n0.7,1,x\n".encode("latin-1")),
    "old Mac": ("p.csv", PAIRS.replace("\n", "\r")),
    "gzip": ("p.csv.gz", gzip.compress(PAIRS.encode())),
    "capitals": ("p.csv", PAIRS.replace("confidence,correct", "Confidence,Correct")),
    "other columns twice": ("p.csv", "id,confidence,correct,id\n1,0.9,1,2\n2,0.5,0,3\n3,0.7,1,4\n"),
    "JSON Lines": ("p.jsonl", "\n".join(map(json.dumps, ROWS))),
    "one JSON list": ("p.json", json.dumps(ROWS)),
    "one JSON object": ("p.json", json.dumps({"confidence": CONFIDENCE, "correct": CORRECT})),
    "prediction and truth": ("p.csv", "prediction,confidence,truth\ncat,0.9,cat\ncat,0.5,dog\nDog,0.7,dog\n"),
    "correct in words": ("p.csv", PAIRS.replace(",1", ",Yes").replace(",0", ",no")),
    "yes and no": (
        "p.jsonl",
        lines([
            {"answer": "yes", "confidence": 0.9, "label": "yes"},
            {"answer": "no", "confidence": 0.5, "label": "yes"},
            {"answer": "no", "confidence": 0.7, "label": "no"},
        ]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_pairs_are_the_same_in_every_format(tmp_path: Path, name: str) -> None:
    file, content = TEXTS[name]
    source = read(write(tmp_path / file, content))
    assert source.kind == "confidence"
    assert source.values.tolist() == CONFIDENCE
    assert np.asarray(source.labels).tolist() == CORRECT
    assert source.predictions().correct.tolist() == [True, False, True]


CLASSES: dict[str, tuple[str, str]] = {
    "columns in another order": ("p.csv", "label,prob_dog,prob_cat\ncat,0.1,0.9\ndog,0.8,0.2\ndog,0.4,0.6\n"),
    "names of labels only": ("p.csv", "proba_0,proba_1,y_true\n0.9,0.1,cat\n0.2,0.8,dog\n0.6,0.4,dog\n"),
    "class 1 of two": ("p.csv", "y_true,y_prob\ncat,0.1\ndog,0.8\ndog,0.4\n"),
    "lists as text": ("p.csv", 'probabilities,target\n"[0.9, 0.1]",cat\n"[0.2 0.8]",dog\n"[0.6, 0.4]",dog\n'),
    "lists": ("p.jsonl", lines([{"probs": p, "label": y} for p, y in zip(CAT_AND_DOG, LABELS, strict=True)])),
    "dictionaries": (
        "p.jsonl",
        lines([{"probabilities": {"cat": p[0], "dog": p[1]}, "label": y}
               for p, y in zip(CAT_AND_DOG, LABELS, strict=True)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_classes_by_name(tmp_path: Path, name: str) -> None:
    file, content = CLASSES[name]
    source = read(write(tmp_path / file, content))
    found = source.predictions()
    assert found.names is not None
    assert found.probabilities is not None
    assert set(found.names) == {"cat", "dog"}
    assert found.probabilities[:, found.names.index("cat")] == pytest.approx([0.9, 0.2, 0.6])
    assert [found.names[k] for k in np.asarray(found.target)] == ["cat", "dog", "dog"]


def test_what_is_assumed_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", CLASSES["names of labels only"][1])
    assert noted(read(path), "'proba_0' to 'proba_1' as probabilities", "'y_true' as target")
    assert noted(read(path), "0 = 'cat', 1 = 'dog'", "--classes FILE")
    names = write(tmp_path / "names.txt", "dog\ncat\n")
    told = read(path, probabilities="proba", target="y_true", classes=names)
    assert told.notices == ()
    assert np.asarray(told.labels).tolist() == [1, 0, 0]
    assert read(write(tmp_path / "q.csv", PAIRS)).notices == ()


def test_columns_of_classes_can_be_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "dog,age,cat,label\n0.1,9,0.9,cat\n0.8,8,0.2,dog\n0.4,7,0.6,dog\n")
    source = read(path, probabilities="cat,dog")
    assert source.values.tolist() == CAT_AND_DOG
    assert (source.names, np.asarray(source.labels).tolist()) == (("cat", "dog"), [0, 1, 1])
    assert statistics_duckdb(path, columns=Columns(probabilities="cat,dog")).accuracy == pytest.approx(2 / 3)


def test_percentages_are_told_not_guessed(tmp_path: Path) -> None:
    for cells in ("90,1\n50,0\n70,1\n", "90%,1\n50 %,0\n70%,1\n"):
        path = write(tmp_path / "p.csv", "confidence,correct\n" + cells)
        with pytest.raises(FileError, match="--percent"):
            read(path)
        assert read(path, percent=True).values == pytest.approx(CONFIDENCE)


def test_rounded_rows_are_divided_by_their_sum_with_a_notice(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "prob_a,prob_b,prob_c,y\n0.33,0.33,0.33,a\n0.5,0.3,0.2,b\n0.67,0.17,0.17,c\n")
    source = read(path)
    assert source.values.sum(1) == pytest.approx(np.ones(3), abs=1e-15)
    assert source.values[1].tolist() == [0.5, 0.3, 0.2]
    assert noted(source, "2 of 3 rows", "0.99 to 1.01")
    content = "prob_a,prob_b,label\n" + "0.5001,0.5001,a\n0.4999,0.4999,b\n0.6,0.4,a\n" * 4
    assert noted(read(write(tmp_path / "q.csv", content)), "8 of 12 rows", "0.9998 to 1.0002")
    unexplained = "prob_a,prob_b,y\n0.333123,0.333123,a\n0.5,0.5,b\n0.5,0.5,b\n"
    with pytest.raises(FileError, match="sum to 1"):
        read_predictions(write(tmp_path / "q.csv", unexplained))


def test_ignored_labels_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "id,logits_0,logits_1,label\na,1,2,1\nb,3,4,-100\nc,2,1,0\nd,1,0,1\n")
    with pytest.raises(FileError, match=r"1 of 4 rows: .*--ignore-index -100"):
        read(path)
    source = read(path, ignore_index=-100)
    assert np.asarray(source.labels).tolist() == [1, 0, 1]
    assert noted(source, "1 of 4 rows", "-100")
    assert source.columns(["id"])["id"].tolist() == ["a", "c", "d"]
    assert source.others() == ("id", "label")


def test_ignored_pixels_and_single_labels_are_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits, target = rng.normal(size=(4, 3, 5, 6)), rng.integers(3, size=(4, 5, 6))
    target[:, :2] = 255
    weight = rng.random((4, 5, 6))
    np.savez(tmp_path / "p.npz", logits=logits, target=target, w=weight)
    with pytest.raises(FileError, match=r"48 of 120 places: .*--ignore-index 255"):
        read(tmp_path / "p.npz")
    source = read(tmp_path / "p.npz", ignore_index=255, weight="w")
    assert np.array_equal(source.values, logits[:, :, 2:].transpose(0, 2, 3, 1).reshape(72, 3))
    assert np.array_equal(np.asarray(source.labels), target[:, 2:].ravel())
    assert np.array_equal(np.asarray(source.weight), weight[:, 2:].ravel())
    assert noted(source, "48 of 120 places", "255")
    np.savez(tmp_path / "q.npz", probabilities=np.full((3, 2), 0.6), target=[[1, 1], [-1, 0], [0, 1]])
    with pytest.raises(FileError, match=r"1 of 6 places: .*--ignore-index -1"):
        read(tmp_path / "q.npz")
    several = read(tmp_path / "q.npz", ignore_index=-1)
    assert np.asarray(several.predictions().target).tolist() == [[1, 1], [-1, 0], [0, 1]]
    assert noted(several, "1 of 6 labels", "-1")
    np.savez(tmp_path / "r.npz", logits=logits, target=np.full((4, 5, 6), 255))
    with pytest.raises(FileError, match="leaves none"):
        read(tmp_path / "r.npz", ignore_index=255)


def test_names_of_classes_in_the_columns_and_beside_the_arrays(tmp_path: Path) -> None:
    numbered = write(tmp_path / "p.csv", "prob_1,prob_2,label\n0.9,0.1,1\n0.2,0.8,2\n0.6,0.4,2\n")
    assert np.asarray(read(numbered).labels).tolist() == [0, 1, 1]
    np.savez(tmp_path / "p.npz", probabilities=CAT_AND_DOG, target=["b", "a", "b"], classes_=["b", "a"])
    saved = read(tmp_path / "p.npz")
    assert (saved.names, np.asarray(saved.labels).tolist()) == (("b", "a"), [0, 1, 0])


@pytest.mark.parametrize("labels", ["1,-1,1", "-1.0,1.0,1.0"])
def test_minus_one_and_one_are_two_classes(tmp_path: Path, labels: str) -> None:
    rows = zip(labels.split(","), ("0.9", "0.2", "0.4"), strict=True)
    source = read(write(tmp_path / "p.csv", "target,y_prob\n" + "".join(f"{y},{p}\n" for y, p in rows)))
    assert np.asarray(source.labels).tolist() == [float(y) > 0 for y in labels.split(",")]
    assert noted(source, "-1 and 1 as classes 0 and 1")
    np.savez(tmp_path / "p.npz", predict_proba=CAT_AND_DOG, target=[-1, 1, 1], classes_=[-1, 1])
    named = read(tmp_path / "p.npz")
    assert (named.names, np.asarray(named.labels).tolist()) == (("-1", "1"), [0, 1, 1])


def test_predictions_of_a_trainer_of_transformers(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    logits = np.random.default_rng(0).normal(size=(4, 3, 2))
    np.savez(path, predictions=logits, label_ids=np.array([[0, 1, -100]] * 4))
    source = read(path, ignore_index=-100)
    assert np.array_equal(source.values, logits[:, :2].reshape(8, 2))
    assert noted(source, "transformers")
    np.savez(path, predictions=softmax(np.repeat(logits[:, 0], 3, 0), 1), label_ids=[0, 1, 0, 1] * 3)
    assert noted(read(path), "--probabilities predictions")
    assert read(path, probabilities="predictions").kind == "probabilities"


def test_arrays_in_files_of_their_own(tmp_path: Path) -> None:
    logits, target = np.random.default_rng(0).normal(size=(5, 3)), np.array([0, 1, 2, 1, 0])
    for name in ("test_logits", "scores"):
        np.save(tmp_path / f"{name}.npy", logits)
    for name in ("test_labels", "truth_of_it"):
        np.save(tmp_path / f"{name}.npy", target)
    pair = read(tmp_path / "test_logits.npy")
    assert noted(pair, "test_labels.npy")
    named = read(tmp_path / "scores.npy", logits="scores", target=str(tmp_path / "truth_of_it.npy"))
    for source in (pair, named):
        assert np.array_equal(source.values, logits)
        assert np.array_equal(np.asarray(source.labels), target)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_folders_and_patterns(tmp_path: Path, suffix: str) -> None:
    for part in range(3):
        rows = [{"confidence": 0.5 + part / 10, "correct": 1}, {"confidence": 0.1, "correct": part % 2}]
        text = lines(rows) if suffix == ".jsonl" else "confidence,correct\n" + "".join(
            f"{row['confidence']},{row['correct']}\n" for row in rows)  # fmt: skip
        write(tmp_path / "parts" / f"part-{part}{suffix}", text)
    write(tmp_path / "parts" / "_SUCCESS", "")
    for place in (tmp_path / "parts", tmp_path / "parts" / f"part-*{suffix}"):
        assert read(place).values.tolist() == [0.5, 0.1, 0.6, 0.1, 0.7, 0.1]
        assert statistics_duckdb(place).samples == 6


def harness(target: Any, scores: Sequence[float], **more: Any) -> dict[str, Any]:
    """One line as lm-evaluation-harness writes it."""
    options = {f"gen_args_{k}": {"arg_0": "Question", "arg_1": f" {'abcd'[k]}"} for k in range(len(scores))}
    filtered = [[str(score), "False"] for score in scores]
    return {
        "doc_id": 0, "doc": {"question": "?"}, "target": target, "arguments": options,
        "resps": [[one] for one in filtered], "filtered_resps": filtered, "acc": 0.0, **more,
    }  # fmt: skip


def test_samples_of_the_harness(tmp_path: Path) -> None:
    scores = [[-3.0, -1.0, -4.0], [-3.0, -1.0, -4.0], [-3.0, -1.0, -0.5]]
    rows = [harness("1", scores[0], acc=1.0), harness("c", scores[1]), harness(2, scores[2], acc=1.0),
            harness("1", scores[0], filtered_resps=None)]  # fmt: skip
    source = read(write(tmp_path / "samples_arc.jsonl", lines(rows)))
    assert source.kind == "logits"
    assert source.values.tolist() == scores
    assert np.asarray(source.labels).tolist() == [1, 2, 2]
    assert noted(source, "1 of 4 rows", "no target")
    for row in rows:
        del row["filtered_resps"]
    assert read(write(tmp_path / "samples_deep.jsonl", lines(rows[:3]))).values.tolist() == scores


def test_questions_with_different_numbers_of_options(tmp_path: Path) -> None:
    scores = [[-3.0, -1.0, -4.0], [-3.0, -1.0], [-0.5, -1.0, -2.0, -3.0]]
    expected = [softmax(row).max() for row in scores]
    rows = [harness(target, row, acc=acc) for target, row, acc in zip((1, 0, 0), scores, (1.0, 0.0, 1.0), strict=True)]
    of_harness = read(write(tmp_path / "samples.jsonl", lines(rows)))
    plain = [{"logprobs": row, "target": target} for row, target in zip(scores, (1, 0, 0), strict=True)]
    of_lists = read(write(tmp_path / "p.jsonl", lines([*plain, {"logprobs": None, "target": 1}])))
    for source in (of_harness, of_lists):
        assert source.kind == "confidence"
        assert source.values == pytest.approx(expected)
        assert np.asarray(source.labels).tolist() == [1, 0, 1]
        assert noted(source, "2 to 4 options")
    assert noted(of_lists, "1 of 4 rows", "logprobs")


def test_log_probabilities_by_option(tmp_path: Path) -> None:
    rows = [{"logprobs": {"A": -0.1, "B": -2.3}, "target": "A"}, {"logprobs": {"A": -0.1}, "target": "A"},
            {"target": "B"}, {"logprobs": {"A": -3, "B": -0.2}, "target": "B"},
            {"logprobs": {"A": -3, "B": -0.2}, "target": "A"}]  # fmt: skip
    source = read(write(tmp_path / "p.jsonl", lines(rows)))
    assert (source.kind, source.names) == ("logits", ("A", "B"))
    assert source.values.tolist() == [[-0.1, -2.3], [-3.0, -0.2], [-3.0, -0.2]]
    assert np.asarray(source.labels).tolist() == [0, 1, 0]
    assert noted(source, "2 of 5 rows", "logprobs")


def saved(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


BAD: dict[str, tuple[str, str | bytes | Callable[[Path], None], dict[str, Any], str]] = {
    "no rows": ("p.npz", saved(logits=np.zeros((0, 3)), target=np.zeros(0, int)), {}, "has no rows"),
    "not gzipped": ("p.csv.gz", PAIRS, {}, "gzipped"),
    "broken line": ("p.jsonl", '{"confidence": 0.5}\n{"confidence": 0.6\n', {}, "cannot be read: .*line"),
    "two ways": ("p.csv", "prediction,confidence,truth\n0,0.9,cat\n1,0.8,dog\n", {}, "two ways"),
    "nothing in common": ("p.csv", "prediction,confidence,truth\nA,0.9,cat\nB,0.8,dog\n", {}, "no prediction"),
    "no prediction": ("p.csv", "confidence,target\n0.9,1\n0.8,0\n", {}, "--prediction and --target"),
    "unknown class": ("p.csv", "prob_cat,prob_dog,label\n0.9,0.1,owl\n", {}, "'owl'"),
    "order unknown": ("p.csv", "prob_0,prob_1,prob_2,y\n1,0,0,a\n0,1,0,b\n", {}, "--classes FILE"),
    "from one": ("p.csv", "prob_0,prob_1,y\n1,0,1\n0,1,2\n", {}, "from 1"),
    "late word": ("p.csv", "confidence,correct\n" + "0.5,1\n" * 3000 + "high,0\n", {}, "row 3001"),
    "no weights": ("p.csv", PAIRS, {"weight": "w"}, "'w'"),
    "generation": ("p.jsonl", lines([{"target": "42", "resps": [["41"]]}] * 3), {}, "multiple choice"),
    "logits as probabilities": (
        "p.csv", "prob_a,prob_b,y\n-3,2,a\n5,1,b\n0,1,a\n", {}, "--logits prob$"
    ),
    "close to probabilities": (
        "p.npz", saved(probabilities=P - P.min() - 0.01, target=P.argmax(1)), {}, "too close"
    ),
    "one digit": (
        "p.npz", saved(probabilities=P.round(1), target=P.argmax(1)), {}, "more digits"
    ),
    "one-hot": ("p.npz", saved(probabilities=P, target=np.eye(3)[P.argmax(1)]), {}, "one-hot"),
    "one-hot, logits": ("p.npz", saved(logits=P, target=np.eye(3)[P.argmax(1)]), {}, "one-hot"),
    "no target": ("p.csv", "id,y_prob,outcome\n1,0.5,1\n", {}, "id, outcome: .*--target"),
    "objects": ("p.npz", saved(logits=P, target=np.array(["a"] * 12, dtype=object)), {}, r"astype\(str\)"),
    "UTF-16, big-endian": ("p.csv", b"\xfe\xff" + PAIRS.encode("utf-16-be"), {}, "big-endian"),
    "objects in .npy": ("p.npy", lambda path: np.save(path, np.array(["a", 1], object)), {"logits": "p"}, "objects"),
    "no part": ("part-*.csv", lambda _: None, {}, "no such file"),
    "an empty folder": ("parts", lambda path: path.mkdir(), {}, "folder"),
    "spreadsheet": ("p.xlsx", b"PK\x03\x04", {}, "CSV or Parquet"),
    "percent of logits": ("p.npz", saved(logits=[[1.0, 2.0]], target=[0]), {"percent": True}, "--percent"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_understood_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    file, content, names, message = BAD[name]
    path = tmp_path / file
    if callable(content):
        content(path)
    else:
        write(path, content)
    with pytest.raises(FileError, match=message) as caught:
        read_predictions(path, Columns(**names))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("file", "content", "message"), [
    ("b.csv", "correct,confidence\n1,0.9\n", r"b\.csv: .*orders.*a\.csv"),
    ("b.csv", PAIRS.replace(",", ";"), "separates"),
    ("b.csv", "confidence,hit\n1,0.9\n", "names"),
    ("b.jsonl", "", r"\.csv and \.jsonl"),
])  # fmt: skip
def test_files_of_a_folder_must_be_alike(tmp_path: Path, file: str, content: str, message: str) -> None:
    write(tmp_path / "parts" / "a.csv", PAIRS)
    write(tmp_path / "parts" / file, content)
    with pytest.raises(FileError, match=message):
        read(tmp_path / "parts")


def test_weights_are_read_by_name_and_never_assumed(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "confidence,correct,sample_weight\n0.9,1,2\n0.5,0,1\n0.7,1,1\n")
    unused = read(path)
    assert unused.weight is None
    assert noted(unused, "--weight sample_weight")
    assert np.asarray(read(path, weight="sample_weight").predictions().weight).tolist() == [2, 1, 1]


@pytest.mark.parametrize(("predictions", "remedy"), [
    ("0,1,1", "probability of 1, give --probabilities conf"),
    ("no,yes,yes", "probability of yes, give --probabilities conf"),
    ("b,a,a", "--probabilities conf and --classes FILE with b and a"),
    ("1,0,2", ""), ("1,0,1", ""),
])  # fmt: skip
def test_a_confidence_that_is_the_probability_of_a_class_is_noticed(
    tmp_path: Path, predictions: str, remedy: str
) -> None:
    cells = predictions.split(",")
    rows = zip(cells, ("0.2", "0.9", "0.7"), cells, strict=True)
    source = read(write(tmp_path / "p.csv", "pred,conf,label\n" + "".join(f"{','.join(row)}\n" for row in rows)))
    assert any(remedy in notice for notice in source.notices)
    assert remedy or not any("--probabilities" in notice for notice in source.notices)


def test_a_target_with_one_class_is_noticed(tmp_path: Path) -> None:
    source = read(write(tmp_path / "p.csv", "y_true,y_prob\n1,0.9\n1,0.2\n1,0.4\n"))
    assert noted(source, "only class 1", "'y_true'")
    named = read(write(tmp_path / "q.csv", "prob_cat,prob_dog,y\n0.9,0.1,cat\n0.2,0.8,cat\n0.5,0.5,cat\n"))
    assert noted(named, "only class cat", "'y'")


@pytest.mark.parametrize(("arrays", "notice"), [
    ({"logits": P, "target": P.argmax(1)}, ": give --probabilities logits"),
    ({"logit": P[:, 0], "target": P.argmax(1) > 0}, "give --probabilities logit if"),
    ({"logits": P, "target": (P > 0.3).astype(int)}, "all lie in"),
    ({"logits": np.moveaxis(P.reshape(3, 4, 3), -1, 1), "target": P.argmax(1).reshape(3, 4)}, "look like prob"),
    ({"y_prob": np.ones(12), "target": P.argmax(1) > 0}, "as a softmax over one class gives"),
    ({"y_prob": np.ones((12, 1)), "target": P.argmax(1) > 0}, "as a softmax over one class gives"),
])  # fmt: skip
def test_values_of_another_kind_are_a_notice_that_names_the_option(
    tmp_path: Path, arrays: dict[str, Any], notice: str
) -> None:
    np.savez(tmp_path / "p.npz", **arrays)
    source = read(tmp_path / "p.npz")
    assert noted(source, notice)
    assert len(source.predictions()) >= 12  # without a warning, which would be an error here


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl", ".csv.gz", ".npz"])
def test_results_keep_every_other_column(tmp_path: Path, suffix: str) -> None:
    rows = "007,0.9,0.1,cat,2026-01-31\n008,0.2,0.8,dog,2026-02-01\n009,0.6,0.4,dog,\n"
    source = read(write(tmp_path / "p.csv", "id,prob_cat,prob_dog,label,when\n" + rows))
    probabilities = np.array([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5]])
    out = tmp_path / f"out{suffix}"
    write_calibrated(out, source, probabilities)
    again = read(out)
    assert again.values == pytest.approx(probabilities)
    assert np.asarray(again.labels).tolist() == [0, 1, 1]
    assert set(again.others()) - {"classes_"} == {"id", "label", "when"}
    if suffix == ".csv":
        assert out.read_text().splitlines()[:2] == [
            "id,label,when,probabilities_cat,probabilities_dog", "007,cat,2026-01-31,0.7,0.3"
        ]  # fmt: skip


def test_what_is_read_beyond_memory_is_what_is_read_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 50)
    labels = rng.integers(-1, 3, size=50)
    rows = [f"{','.join(f'{100 * x:.17g}' for x in row)},{label}" for row, label in zip(p, labels, strict=True)]
    path = write(tmp_path / "p.csv", "\n".join(["prob_0;prob_1;prob_2;y".replace(";", ","), *rows]) + "\n")
    names = {"percent": True, "ignore_index": -1}
    expected = read(path, **names).predictions()
    found = statistics_duckdb(path, columns=Columns(percent=True, ignore_index=-1))
    assert found.samples == len(expected)
    assert found.accuracy == pytest.approx(expected.correct.mean())
    assert found.mean_confidence == pytest.approx(expected.confidence.mean())
    named = write(tmp_path / "q.csv", "prob_b,prob_a,y\n0.9,0.1,b\n0.8,0.2,a\n0.3,0.7,a\n")
    assert statistics_duckdb(named).accuracy == pytest.approx(2 / 3)
    text = write(tmp_path / "r.csv", TEXTS["prediction and truth"][1])
    assert statistics_duckdb(text).accuracy == pytest.approx(2 / 3)


def test_labels_that_nobody_knows_are_counted(tmp_path: Path) -> None:
    target = np.tile([[1, 0, 0], [0, 1, 1]], (6, 1))
    target[0], target[1, 2] = -100, -100
    np.savez(tmp_path / "labels.npz", probabilities=np.full((12, 3), 0.5), target=target)
    source = read(tmp_path / "labels.npz")
    assert noted(source, "4 of 36 labels", "1 of 12 samples")
    assert source.predictions().samples == 11
    np.savez(tmp_path / "pixels.npz", logits=np.zeros((2, 3, 4)), target=[[0, 1, 2, 0], [0, -100, 2, 0]])
    assert noted(read(tmp_path / "pixels.npz"), "1 of 8 places")
