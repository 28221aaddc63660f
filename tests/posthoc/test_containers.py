"""What people hold predictions in goes in, and the same comes out: tensors, arrays, data frames, dense logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import frames
from calibrant.posthoc import (
    Calibrator,
    ConformalClassifier,
    MultiLabelCalibration,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
    load,
    logits_from_probabilities,
    save,
)
from calibrant.posthoc.registry import METHODS
from tests.frames import LIBRARIES, frame_of, series_of
from tests.posthoc.data import overconfident

LOGITS, TARGET = overconfident(400, 3, 2.0, seed=0)
NAMES = np.array(["ant", "bee", "cow"])


@pytest.mark.parametrize("name", ["auto", "vector", "isotonic", "spline"])
def test_names_of_classes_are_kept(name: str) -> None:
    plain = METHODS[name]().fit(LOGITS, TARGET)
    named = METHODS[name]().fit(LOGITS.numpy(), NAMES[TARGET])
    assert plain.classes_.tolist() == [0, 1, 2]
    assert named.classes_.tolist() == NAMES.tolist()
    np.testing.assert_array_equal(named.predict_proba(LOGITS.numpy()), plain.predict_proba(LOGITS).numpy())
    assert named.predict(LOGITS).tolist() == NAMES[plain.predict(LOGITS)].tolist()


def test_columns_of_a_data_frame_name_the_classes_and_come_back() -> None:
    pandas = pytest.importorskip("pandas")
    order = ["cow", "ant", "bee"]
    frame = pandas.DataFrame(LOGITS.numpy()[:, [2, 0, 1]], columns=order, index=np.arange(400) + 7)
    fitted = VectorScaling().fit(frame, pandas.Series(NAMES[TARGET]))
    assert fitted.classes_.tolist() == order
    for result in (fitted.predict_proba(frame), fitted(frame)):
        assert result.columns.tolist() == order
        assert result.index.tolist() == frame.index.tolist()
    expected = VectorScaling().fit(LOGITS, TARGET).predict_proba(LOGITS).numpy()
    np.testing.assert_allclose(fitted.predict_proba(frame)[NAMES.tolist()].to_numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["vector", "platt", "venn-abers"])
def test_frames_of_every_library_give_what_arrays_give(name: str, library: str) -> None:
    frame, target = frame_of(library, LOGITS.numpy(), NAMES), series_of(library, NAMES[TARGET])
    weight = np.random.default_rng(0).integers(1, 4, 400)
    fitted = METHODS[name]().fit(frame, target, sample_weight=series_of(library, weight))
    expected = METHODS[name]().fit(LOGITS.numpy(), NAMES[TARGET], sample_weight=weight)
    assert fitted.classes_.tolist() == NAMES.tolist()
    found: Any = fitted.predict_proba(frame)
    assert type(found) is type(frame)
    assert frames.columns(found) == NAMES.tolist()
    np.testing.assert_array_equal(frames.as_array(found), expected.predict_proba(LOGITS.numpy()))
    assert fitted.predict(frame).tolist() == expected.predict(LOGITS.numpy()).tolist()
    moved: Any = fitted.predict_proba(frame_of(library, LOGITS.numpy()[:, [2, 0, 1]], NAMES[[2, 0, 1]]))
    np.testing.assert_array_equal(frames.as_array(moved), frames.as_array(found))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_series_of_binary_logits_gives_a_series_of_logits_and_a_frame_of_probabilities(library: str) -> None:
    series, array = series_of(library, LOGITS[:, 1].numpy()), LOGITS[:, 1].numpy()
    fitted: Any = TemperatureScaling().fit(LOGITS[:, 1], TARGET % 2)
    assert type(fitted(series)) is type(series)
    np.testing.assert_array_equal(frames.as_array(fitted(series)), fitted(array))
    assert frames.columns(fitted.predict_proba(series))
    np.testing.assert_array_equal(frames.as_array(fitted.predict_proba(series)), fitted.predict_proba(array))
    column = frame_of(library, LOGITS[:, [1]].numpy(), ["logit"])
    assert frames.columns(fitted(column)) == ["logit"]
    np.testing.assert_array_equal(frames.as_array(fitted(column))[:, 0], fitted(array))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_of_probabilities_is_that_of_the_class_it_is_named_after(library: str) -> None:
    probabilities = LOGITS[:, 0].sigmoid().numpy()
    frame, target = frame_of(library, probabilities[:, None], ["ant"]), np.where(TARGET == 0, "ant", "bee")
    logits: Any = logits_from_probabilities(frame)
    assert type(logits) is type(frame)
    assert frames.columns(logits) == ["ant"]
    fitted = PlattScaling().fit(logits, target)
    assert fitted.classes_.tolist() == ["bee", "ant"]  # the column is that of the second
    expected = PlattScaling().fit(logits_from_probabilities(probabilities), np.where(TARGET == 0, 1, 0))
    found = frames.as_array(fitted.predict_proba(logits))
    np.testing.assert_array_equal(found, expected.predict_proba(logits_from_probabilities(probabilities)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_probabilities_sets_groups_and_labels_of_frames(library: str) -> None:
    frame = frame_of(library, LOGITS.softmax(1).numpy(), NAMES)
    logits: Any = logits_from_probabilities(frame)
    assert type(logits) is type(frame)
    assert frames.columns(logits) == NAMES.tolist()
    groups = np.array(["north", "south"] * 200)
    given: dict[str, Any] = {"groups": series_of(library, groups)}
    sets = ConformalClassifier(coverage="group-conditional").fit(logits, series_of(library, NAMES[TARGET]), **given)
    array = frames.as_array(logits)
    plain: Any = ConformalClassifier(coverage="group-conditional").fit(array, NAMES[TARGET], groups=groups)
    found: Any = sets.predict_set(logits, **given)
    assert type(found) is type(frame)
    np.testing.assert_array_equal(frames.as_array(found), plain.predict_set(array, groups=groups))
    several = np.eye(3, dtype=int)[TARGET]
    labels = MultiLabelCalibration("platt").fit(logits, frame_of(library, several, NAMES))
    assert labels.classes_.tolist() == NAMES.tolist()
    assert frames.columns(labels.predict_proba(logits)) == NAMES.tolist()


def test_a_lazy_frame_is_to_be_collected_first() -> None:
    lazy = pytest.importorskip("polars").LazyFrame({"a": [1.0], "b": [2.0]})
    with pytest.raises(TypeError, match="LazyFrame"):
        TemperatureScaling().fit(lazy, [0])


def test_dense_labels_are_rows_in_another_shape() -> None:
    dense = LOGITS.view(4, 10, 10, 3).movedim(-1, 1)
    target = (dense > 0).long()
    target[0, 0, 0] = -100
    weight = torch.rand(4, 10, 10, generator=torch.Generator().manual_seed(0))
    fitted = MultiLabelCalibration("platt").fit(dense, target, sample_weight=weight)
    rows = target.movedim(1, -1).reshape(-1, 3)
    expected = MultiLabelCalibration("platt").fit(LOGITS, rows, sample_weight=weight.flatten()).predict_proba(LOGITS)
    torch.testing.assert_close(fitted.predict_proba(dense).movedim(1, -1).reshape(-1, 3), expected)


@pytest.mark.parametrize("method", METHODS.values())
def test_lists_give_what_arrays_give_and_no_samples_give_no_rows(method: type[Calibrator]) -> None:
    fitted = method().fit(LOGITS, TARGET)
    np.testing.assert_array_equal(fitted.predict_proba(LOGITS.tolist()), fitted.predict_proba(LOGITS.numpy()))
    no_rows: list[list[float]] = []
    for empty in (no_rows, np.zeros(0), np.zeros((0, 3))):
        assert fitted.predict_proba(empty).shape == (0, 3)
        assert fitted.predict(empty).shape == (0,)


@pytest.mark.parametrize("method", METHODS.values())
def test_float64_logits_are_on_the_steps_of_a_fit_in_float32(method: type[Calibrator]) -> None:
    fitted = method().fit(LOGITS.float(), TARGET)
    single, double = fitted.predict_proba(LOGITS.float()), fitted.predict_proba(LOGITS)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double, single.double(), rtol=0, atol=2e-6)
    assert fitted.predict_proba(torch.tensor([[1e300, 0.0, -1e300]], dtype=torch.float64)).isfinite().all()
    if isinstance(fitted, VennAbers):
        for wide, narrow in zip(fitted.predict_interval(LOGITS), fitted.predict_interval(LOGITS.float()), strict=True):
            torch.testing.assert_close(wide, narrow.double(), rtol=0, atol=0)


def test_rows_of_different_lengths_are_refused_in_one_line() -> None:
    ragged: Any = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [4.0, 5.0]]
    fitted = TemperatureScaling().fit(LOGITS, TARGET)
    for call in (fitted.predict_proba, ConformalClassifier().fit(LOGITS, TARGET).predict_set):
        for rows in (ragged, [[[1.0], [2.0, 3.0]]]):
            with pytest.raises(ValueError, match="same length"):
                call(rows)


@pytest.mark.parametrize(("target", "options", "message"), [
    (NAMES[:2][TARGET % 2], {}, "pass classes="),
    (NAMES[TARGET], {"classes": ["ant", "bee", "fly"]}, "'cow'"),
    (NAMES[TARGET], {"classes": ["ant", "bee"]}, "3 different labels"),
])  # fmt: skip
def test_labels_that_do_not_fit_are_explained(target: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TemperatureScaling().fit(LOGITS.numpy(), target, **options)


@pytest.mark.parametrize("name", ["auto", "vector", "isotonic", "spline"])
def test_dense_logits_are_rows_in_another_shape(name: str) -> None:
    dense = LOGITS.view(4, 10, 10, 3).movedim(-1, 1)
    target = TARGET.view(4, 10, 10).clone()
    target[0, 0, :5] = -100
    kept = target.flatten() != -100
    fitted = METHODS[name]().fit(dense, target)
    rows = METHODS[name]().fit(LOGITS[kept], TARGET[kept]).predict_proba(LOGITS)
    found = fitted.predict_proba(dense)
    assert found.shape == dense.shape
    torch.testing.assert_close(found.movedim(1, -1).reshape(-1, 3), rows)
    assert fitted.predict(dense).shape == target.shape
    assert fitted(dense).shape == dense.shape


@pytest.mark.parametrize("name", METHODS)
def test_multi_label_is_one_binary_calibrator_per_label(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    target = (torch.rand(400, 3, generator=generator, dtype=torch.float64) < (LOGITS / 2).sigmoid()).long()
    fitted = MultiLabelCalibration(name).fit(LOGITS, target)
    found = fitted.predict_proba(LOGITS)
    for k in range(3):
        own = METHODS[name]().fit(LOGITS[:, k], target[:, k]).predict_proba(LOGITS[:, k])[:, 1]
        torch.testing.assert_close(found[:, k], own)
    np.testing.assert_allclose(fitted.predict_proba(LOGITS.numpy()), found.numpy(), atol=1e-12)
    save(fitted, tmp_path / "labels.safetensors")
    assert torch.equal(load(tmp_path / "labels.safetensors").predict_proba(LOGITS), found)


def test_multi_label_misuse_is_explained() -> None:
    with pytest.raises(ValueError, match="class per sample"):
        MultiLabelCalibration().fit(LOGITS, TARGET)
    with pytest.raises(RuntimeError, match="not fitted"):
        MultiLabelCalibration().predict_proba(LOGITS)
    with pytest.raises(ValueError, match="'auto'"):
        MultiLabelCalibration("sigmoid")
    fitted = MultiLabelCalibration().fit(LOGITS, torch.eye(3).long()[TARGET])
    with pytest.raises(ValueError, match="fitted on 3 classes"):
        fitted.predict_proba(LOGITS[:, :2])


def test_other_columns_of_a_new_data_frame_are_refused_or_taken_by_position() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(LOGITS.numpy(), columns=NAMES)
    fitted = TemperatureScaling().fit(frame, NAMES[TARGET])
    with pytest.raises(ValueError, match="classes"):
        fitted.predict_proba(frame.rename(columns={"cow": "kow"}))
    renamed = frame.set_axis(["x", "y", "z"], axis=1)
    np.testing.assert_array_equal(fitted.predict_proba(renamed).to_numpy(), fitted.predict_proba(frame).to_numpy())


def test_ignored_entries_and_names_go_together() -> None:
    target: Any = (TARGET * 10).clone()
    target[:50] = -100
    fitted = TemperatureScaling().fit(LOGITS, target, classes=[0, 10, 20])
    assert fitted.temperature_ == TemperatureScaling().fit(LOGITS[50:], TARGET[50:]).temperature_
    assert fitted.worse_than_nothing(LOGITS, target) is None


def test_whole_numbers_in_any_dtype_are_taken() -> None:
    expected = TemperatureScaling().fit(LOGITS.round(), TARGET).temperature_
    found = TemperatureScaling().fit(LOGITS.round().numpy().astype(int), TARGET.numpy().astype(float))
    assert found.temperature_ == expected


@pytest.mark.parametrize("prefix", ["", "prob_", "p "])
def test_columns_named_after_the_classes_are_found_in_any_order(prefix: str) -> None:
    pandas = pytest.importorskip("pandas")
    logits, target = overconfident(400, 3, 2.0, seed=0)
    names, other = np.array(["cat", "dog", "bobcat"]), [2, 0, 1]
    frame = pandas.DataFrame(logits.numpy()[:, other], columns=[prefix + names[k] for k in other])
    fitted = TemperatureScaling().fit(frame, names[target])
    assert fitted.temperature_ == pytest.approx(TemperatureScaling().fit(logits, target).temperature_)
    assert list(fitted.classes_) == [names[k] for k in other]
    turned = frame[list(frame.columns[::-1])]
    np.testing.assert_array_equal(fitted.predict_proba(turned), fitted.predict_proba(frame))


def test_columns_of_which_only_some_are_named_after_classes_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    logits, target = overconfident(50, 3, 2.0, seed=0)
    frame = pandas.DataFrame(logits.numpy(), columns=["cat", "dog", "other"])
    with pytest.raises(ValueError, match="other"):
        TemperatureScaling().fit(frame, np.array(["cat", "dog", "owl"])[target])
