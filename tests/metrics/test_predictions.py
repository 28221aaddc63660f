"""What predictions come in: data frames, names of classes, dense arrays; and parts of predictions."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import frames, metrics
from calibrant.inputs import InputWarning
from tests.frames import LIBRARIES, frame_of, series_of
from tests.metrics.reference import assert_same

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((300, 3))
P = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
TARGET = RNG.integers(3, size=300)
NAMES = np.array(["cow", "ant", "bee"])
WEIGHT = RNG.integers(1, 5, 300)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_frames_give_what_arrays_give(kind: str, library: str) -> None:
    values = LOGITS if kind == "logits" else P
    options: Any = {kind: frame_of(library, values, NAMES), "sample_weight": series_of(library, WEIGHT)}
    plain: Any = {kind: values, "target": TARGET, "sample_weight": WEIGHT}
    expected = metrics.predictions(**plain)
    for target in (TARGET, NAMES[TARGET]):
        found = metrics.predictions(**options, target=series_of(library, target))
        assert_same(found, expected)
        assert found.names == tuple(NAMES)
    assert dict(metrics.evaluate(**options, target=NAMES[TARGET].tolist())) == dict(metrics.evaluate(expected))


@pytest.mark.parametrize("library", LIBRARIES)
def test_series_give_what_arrays_give(library: str) -> None:
    z, c = P.max(1), P.argmax(1) == TARGET
    pairs = metrics.predictions(series_of(library, z), series_of(library, c))
    assert_same(pairs, metrics.predictions(z, c))
    binary = metrics.predictions(probabilities=series_of(library, P[:, 1]), target=series_of(library, TARGET == 1))
    expected = metrics.predictions(probabilities=P[:, 1], target=TARGET == 1)
    assert_same(binary, expected)
    names = np.where(TARGET == 1, "yes", "no")
    assert_same(metrics.predictions(probabilities=P[:, 1], target=names, classes=["no", "yes"]), expected)
    sets = frame_of(library, P > 0.2, NAMES)
    assert metrics.coverage(sets, series_of(library, TARGET)) == metrics.coverage(P > 0.2, TARGET)


@pytest.mark.parametrize("library", LIBRARIES)
def test_labels_of_frames_are_matched_by_name(library: str) -> None:
    marks = (RNG.random((300, 3)) < P).astype(int)
    moved = frame_of(library, marks[:, [1, 2, 0]], NAMES[[1, 2, 0]])
    found = metrics.predictions(probabilities=frame_of(library, P, NAMES), target=moved)
    assert_same(found, metrics.predictions(probabilities=P, target=marks))
    with pytest.raises(ValueError, match="classes"):
        metrics.predictions(
            probabilities=frame_of(library, P, NAMES), target=frame_of(library, marks, ["cow", "b", "c"])
        )


def test_numbers_of_columns_are_no_names() -> None:
    pandas = pytest.importorskip("pandas")
    assert metrics.predictions(logits=pandas.DataFrame(LOGITS), target=TARGET).names is None
    with pytest.raises(TypeError, match=r"logits .*numbers"):
        metrics.predictions(logits=pandas.DataFrame({"a": ["x"], "b": [1.0]}), target=[0])


@pytest.mark.parametrize(("target", "classes"), [
    (NAMES[TARGET], NAMES), (NAMES[TARGET].tolist(), NAMES), (NAMES[TARGET].astype(object), NAMES), (TARGET, NAMES),
    (TARGET * 10 + 10, [10, 20, 30]),
])  # fmt: skip
def test_labels_are_found_among_the_classes(target: Any, classes: Any) -> None:
    found = metrics.predictions(probabilities=P, target=target, classes=classes)
    assert_same(found, metrics.predictions(probabilities=P, target=TARGET))
    assert found.names == tuple(map(str, classes))


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_dense_values_are_rows_in_another_shape(kind: str) -> None:
    values = LOGITS if kind == "logits" else P
    dense, target = torch.from_numpy(values).view(3, 10, 10, 3).movedim(-1, 1), TARGET.reshape(3, 10, 10)
    options: Any = {kind: dense, "target": target, "sample_weight": WEIGHT.reshape(3, 10, 10)}
    rows: Any = {kind: values, "target": TARGET, "sample_weight": WEIGHT}
    assert_same(metrics.predictions(**options), metrics.predictions(**rows))
    binary: Any = {kind: dense[:, 1:2], "target": target == 1}
    flat: Any = {kind: values[:, 1], "target": TARGET == 1}
    assert_same(metrics.predictions(**binary), metrics.predictions(**flat))


@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_ignored_samples_are_left_out_whatever_they_hold(ignore_index: int) -> None:
    target, spoiled = TARGET.copy(), LOGITS.copy()
    target[:20] = ignore_index
    kept = target != ignore_index
    spoiled[~kept] = np.nan
    options: Any = {} if ignore_index == -100 else {"ignore_index": ignore_index}
    found = metrics.predictions(logits=spoiled, target=target, sample_weight=WEIGHT, **options)
    assert_same(found, metrics.predictions(logits=LOGITS[kept], target=TARGET[kept], sample_weight=WEIGHT[kept]))
    with pytest.raises(ValueError, match=r"0\.\.2"):
        metrics.predictions(logits=LOGITS, target=np.where(kept, TARGET, -100), ignore_index=None)


KINDS: dict[str, Any] = {
    "pairs": {"confidence": P.max(1), "correct": P.argmax(1) == TARGET},
    "probabilities": {"probabilities": P, "target": TARGET},
    "logits": {"logits": LOGITS, "target": TARGET},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.integers(-300, 299), min_size=1, max_size=50))
def test_a_part_of_predictions_is_the_predictions_of_a_part(kind: str, rows: list[int]) -> None:
    whole = metrics.predictions(**KINDS[kind], sample_weight=WEIGHT)
    expected = metrics.predictions(
        **{name: value[rows] for name, value in KINDS[kind].items()}, sample_weight=WEIGHT[rows]
    )
    assert_same(whole[rows], expected)


@pytest.mark.parametrize("library", ["numpy", "torch", *LIBRARIES])
def test_masks_and_slices_take_samples(library: str) -> None:
    data = metrics.predictions(logits=LOGITS, target=TARGET, classes=NAMES.tolist())
    mask: Any = TARGET == 1
    given = mask if library == "numpy" else torch.from_numpy(mask) if library == "torch" else series_of(library, mask)
    assert_same(data[given], metrics.predictions(logits=LOGITS[mask], target=TARGET[mask]))
    assert_same(data[10:20], metrics.predictions(logits=LOGITS[10:20], target=TARGET[10:20]))
    assert data[given].names == tuple(NAMES)


def test_what_is_no_selection_is_refused() -> None:
    data = metrics.predictions(logits=LOGITS, target=TARGET)
    with pytest.raises(IndexError, match="300 samples, got 5"):
        data[np.ones(5, bool)]
    for wrong in (3, "a", [0.5], np.zeros((2, 2), int)):
        with pytest.raises(TypeError, match="slice"):
            data[wrong]


@pytest.mark.parametrize("library", ["list", *LIBRARIES])
def test_groups_are_parts_by_name(library: str) -> None:
    data = metrics.predictions(logits=LOGITS, target=TARGET)
    where = np.array(["south", "north"])[TARGET % 2]
    parts = data.group_by(where.tolist() if library == "list" else series_of(library, where))
    assert list(parts) == ["north", "south"]
    for name, part in parts.items():
        assert_same(part, data[where == name])
    assert list(data.group_by(TARGET)) == [0, 1, 2]
    with pytest.raises(ValueError, match="300 samples"):
        data.group_by(["a"])
    with pytest.raises(ValueError, match="None or NaN"):
        data.group_by([None] * 300)


@pytest.mark.parametrize(("options", "message"), [
    ({"logits": P, "target": TARGET}, r"sum to 1\): pass probabilities="),
    ({"logits": P[:, 1], "target": TARGET == 1}, r"all lie in \[0, 1\]"),
    ({"logits": P, "target": np.zeros((300, 3), int)}, r"all lie in \[0, 1\]"),
    ({"probabilities": np.ones((9, 1)), "target": np.ones(9)}, "softmax"),
])  # fmt: skip
def test_values_of_another_kind_are_noticed_once(options: Any, message: str) -> None:
    with pytest.warns(InputWarning, match=message) as caught:
        data = metrics.predictions(**options)
    assert caught[0].filename == __file__
    with pytest.warns(InputWarning, match=message) as caught:
        metrics.ece(**options)
    assert (len(caught), caught[0].filename) == (1, __file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.ece(data)


GOOD, HALF, ONE_HOT = np.array([0.5, 0.6, 0.7]), np.full((3, 2), 0.5), np.eye(3, dtype=int)[TARGET]
# What is given; and what the error names, or the remedy.
ERRORS: list[tuple[dict[str, Any], str]] = [
    ({}, "none"),
    ({"confidence": GOOD}, "correct"),
    ({"logits": HALF}, "target"),
    ({"confidence": GOOD, "correct": [1, 0, 1], "logits": HALF}, "confidence and logits"),
    ({"confidence": GOOD, "correct": [1, 0, 1], "target": [1, 0, 1]}, "correct and target"),
    ({"confidence": GOOD, "correct": [1, 0, 1], "classes": ["a", "b"]}, "classes"),
    ({"confidence": np.ma.masked_less(GOOD, 0.6), "correct": [1, 0, 1]}, "masked"),
    ({"confidence": [0.5, 1 + 1e-5, 0.1], "correct": [1, 0, 1]}, r"confidence .* \[0, 1\]"),
    ({"confidence": [0.5, np.nan, 0.1], "correct": [1, 0, 1]}, "NaN"),
    ({"confidence": 100 * GOOD, "correct": [1, 0, 1]}, "confidence .* divide by 100"),
    ({"confidence": HALF, "correct": [1, 0, 1]}, "probabilities="),
    ({"confidence": np.array(["a", "b", "c"]), "correct": [1, 0, 1]}, "numbers"),
    ({"confidence": GOOD, "correct": [1, 0]}, r"correct .* \(3,\)"),
    ({"confidence": GOOD, "correct": [1, 2, 1]}, "only 0 .* 1"),
    ({"confidence": GOOD[:2], "correct": [1, 0]}, "3 samples, got 2"),
    ({"logits": np.zeros((0, 3)), "target": np.zeros(0, dtype=int)}, "3 samples, got 0"),
    ({"logits": torch.tensor(3.0), "target": 1}, r"\(N, C\)"),
    ({"logits": [[1.0, 2.0], [3.0]], "target": [0, 1]}, "same length"),
    ({"logits": HALF * np.inf, "target": [0, 1, 1]}, "3 of 3"),
    ({"logits": HALF, "target": [0, 1, 5]}, r"0\.\.1"),
    ({"logits": HALF[None], "target": [0, 1, 1]}, r"target .* \(1, 2\)"),
    ({"logits": LOGITS, "target": TARGET, "sample_weight": -WEIGHT}, "sample_weight .* at least 0"),
    ({"logits": LOGITS, "target": TARGET, "sample_weight": 0 * WEIGHT}, "sample_weight .* above 0"),
    ({"probabilities": HALF, "target": np.eye(2)[[0, 1, 1]]}, "argmax"),
    ({"probabilities": HALF, "target": [0, 1, np.nan]}, "NaN"),
    ({"probabilities": HALF, "target": [0.5, 1, 1]}, "fractions"),
    ({"probabilities": HALF + 0.2, "target": [0, 1, 0]}, "sum to 1"),
    ({"probabilities": np.ones((3, 1, 0)), "target": np.ones((3, 0), int)}, "3 samples, got 0"),
    ({"probabilities": LOGITS, "target": TARGET}, "logits="),
    ({"probabilities": 100 * P, "target": TARGET}, "percentages"),
    ({"probabilities": P, "target": NAMES[TARGET]}, "'[a-z]+': .* classes="),
    ({"probabilities": P, "target": NAMES[TARGET], "classes": ["ant", "bee"]}, "'cow'"),
    ({"probabilities": P, "target": NAMES[TARGET], "classes": ["ant", "bee", "cow", "dog"]}, "3 classes, got 4"),
    ({"logits": LOGITS, "target": ONE_HOT}, "multi_label=True"),
    ({"logits": LOGITS, "target": 1 - ONE_HOT, "multi_label": False}, "argmax"),
    ({"logits": LOGITS, "target": 2 * ONE_HOT, "multi_label": True}, "only 0 and 1"),
    ({"logits": LOGITS, "target": TARGET, "multi_label": True}, r"\(300, 3\)"),
    ({"confidence": GOOD, "correct": [1, 0, 1], "bins": 0}, "bins"),
    ({"confidence": GOOD, "correct": [1, 0, 1], "convention": "mine"}, "convention"),
]


@pytest.mark.parametrize(("arguments", "token"), ERRORS)
def test_bad_input_is_refused(arguments: dict[str, Any], token: str) -> None:
    with pytest.raises((ValueError, TypeError), match=token):
        metrics.evaluate(**arguments)


@pytest.mark.parametrize("library", [None, *LIBRARIES])
def test_scores_become_a_frame(library: str | None) -> None:
    pytest.importorskip(library or "pandas")
    scores = metrics.evaluate(logits=LOGITS, target=TARGET)
    frame = scores.to_frame(library)
    assert type(frame).__module__.split(".")[0] == (library or "pandas")
    assert frames.columns(frame) == ["key", "label", "value", "convention"]
    rows = frames.as_array(frame)
    assert dict(zip(rows[:, 0], rows[:, 2], strict=True)) == dict(scores)


def test_without_a_library_of_frames_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pandas, polars or pyarrow"):
        metrics.evaluate(logits=LOGITS, target=TARGET).to_frame()


@pytest.mark.parametrize("library", LIBRARIES)
def test_groups_and_windows_become_frames(library: str) -> None:
    pytest.importorskip(library)
    groups = metrics.calibration_by_group(logits=LOGITS, target=TARGET, groups=["a", "b"] * 150, draws=20)
    frame = groups.to_frame(library)
    assert type(frame).__module__.split(".")[0] == library
    numbers = ["samples", "mean_confidence", "accuracy", "gap", "gap_low", "gap_high"]
    assert frames.columns(frame) == ["name", *numbers, "ece", "p_value", "rejected"]
    for row, group in zip(frames.as_array(frame), groups.groups, strict=True):
        gap = (group.gap.value, group.gap.low, group.gap.high)
        mean = (group.mean_confidence, group.accuracy)
        assert tuple(row) == (group.name, group.samples, *mean, *gap, group.ece, group.p_value, group.rejected)
    over_time = metrics.calibration_over_time(logits=LOGITS, target=TARGET, time=np.arange(300))
    frame = over_time.to_frame(library)
    assert frames.columns(frame) == ["start", "end", *numbers]
    assert frames.as_array(frame)[:, 5].tolist() == [window.gap.value for window in over_time.windows]
