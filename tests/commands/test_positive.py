"""Which of two classes a probability is for: said in the first line, decided by `--positive`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.files import FileError, read_source
from calibrant.files.layout import Columns
from calibrant.metrics.scale import statistics_duckdb
from tests.shell import ended, refused

Screen = pytest.CaptureFixture[str]

RNG = np.random.default_rng(0)
RISK = RNG.beta(1, 6, 1000)
EVENT = RNG.random(1000) < RISK


def table(
    path: Path, values: Any = RISK, called: str = "y_prob", labels: tuple[str, str] = ("good", "default")
) -> Path:
    rows = (f"{p!r},{labels[int(y)]}" for p, y in zip(values.tolist(), EVENT.tolist(), strict=True))
    path.write_text("\n".join([f"{called},label", *rows, ""]))
    return path


@pytest.mark.parametrize("engine", ["memory", "duckdb"])
def test_the_first_line_names_the_class_and_a_wrong_one_is_warned_of(
    tmp_path: Path, engine: str, capsys: Screen
) -> None:
    command = ("evaluate", table(tmp_path / "loans.csv"), "--draws", 20, "--engine", engine)
    shown = ended(capsys, *command).shown
    assert "of class 'good' (P(y = good))" in shown[:110]
    assert "Note: 'y_prob' is taken for class 'good', the last in alphabetical order" in shown
    assert "Note: 'y_prob' fits class 'default' much better (AUC 0." in shown
    shown = ended(capsys, *command, "--positive", "default").shown
    assert "of class 'default' (P(y = default))" in shown[:110]
    assert "--positive" not in shown
    refused(capsys, "'default', 'good'", *command, "--positive", "bad")


def test_the_page_has_the_notices_and_a_reversed_class_gets_no_repair(tmp_path: Path, capsys: Screen) -> None:
    path, page = table(tmp_path / "loans.csv"), tmp_path / "loans.html"
    shown = ended(capsys, "evaluate", path, "--draws", 20, "--report", page).shown
    assert "check which class it is for" in shown
    assert "repairs" not in shown
    assert "Note: " in page.read_text()
    assert "much better (AUC 0." in page.read_text()
    options = ("--draws", 20, "--positive", "default", "--report", page, "--json")
    (model,) = ended(capsys, "evaluate", path, *options).json["models"]
    assert "class 'default' (P(y = default))" in model["verdict"]
    assert "class &#39;default&#39; (P(y = default))" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("labels", "positive"),
    [(("good", "default"), "default"), (("good", "default"), "good"), (("0", "1"), "0"), (("0", "1"), "1"),
     (("1", "2"), "2"), (("-1", "1"), "-1"), (("False", "True"), "False"), (("0.5", "1.5"), "0.5")],
)  # fmt: skip
def test_the_positive_class_is_class_1_in_memory_and_beyond(
    tmp_path: Path, labels: tuple[str, str], positive: str
) -> None:
    path, columns = table(tmp_path / "p.csv", labels=labels), Columns(positive=positive)
    source = read_source(path, columns)
    event = EVENT if positive == labels[1] else ~EVENT
    assert source.names == (labels[1 - labels.index(positive)], positive)
    assert np.array_equal(np.asarray(source.labels), event)
    found = statistics_duckdb(path, columns=columns, risk=True)
    assert found.accuracy == pytest.approx(event.mean())
    assert found.names == source.names
    warned = [notice for notice in source.notices if "fits class" in notice]
    assert bool(warned) == (positive == labels[0])
    assert [notice for notice in found.notices if "fits class" in notice] == warned


def test_a_column_named_after_a_class_is_for_it(tmp_path: Path) -> None:
    for called, positive in {"p_default": "default", "Prob(Default)": "default", "p_good": "good", "good": "good",
                             "no_default": "good", "p_not_default": "good", "score": "good"}.items():  # fmt: skip
        source = read_source(table(tmp_path / "p.csv", called=called), Columns(probabilities=called))
        assert source.names is not None
        assert source.names[1] == positive, called
        assert f"{called!r} is taken for class {positive!r}" in source.notices[1]
        found = statistics_duckdb(tmp_path / "p.csv", columns=Columns(probabilities=called), risk=True)
        assert found.names == source.names


def test_logits_and_two_unnamed_columns_are_warned_of(tmp_path: Path) -> None:
    logits = np.log(RISK / (1 - RISK))
    for values in (logits, np.stack((np.zeros(1000), logits), 1)):
        np.savez(tmp_path / "p.npz", logits=values, target=np.where(EVENT, "default", "good"))
        assert "fits class 'default' much better" in read_source(tmp_path / "p.npz").notices[-1]
        source = read_source(tmp_path / "p.npz", Columns(positive="default"))
        assert np.array_equal(np.asarray(source.labels), EVENT)
        assert source.notices == ()


def test_a_bad_but_not_reversed_model_is_not_warned_of(tmp_path: Path) -> None:
    shifted = RISK / (RISK + (1 - RISK) / 50)  # far too high, in the right order
    chance = RNG.random(1000)
    for values in (shifted, chance):
        source = read_source(table(tmp_path / "p.csv", values, labels=("0", "1")))
        assert not [notice for notice in source.notices if "--positive" in notice]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("confidence,correct\n0.9,1\n0.5,0\n0.7,1\n", "--positive"),
        ("prob_0,prob_1,prob_2,y\n0.1,0.1,0.8,2\n0.5,0.2,0.3,0\n0.7,0.3,0,1\n", "--positive"),
        ("prob_a,prob_b,y\n0.9,0.1,a\n0.5,0.5,b\n0.7,0.3,b\n", "'a' and 'b'"),
        ("y_prob,y\n0.1,b\n0.2,c\n0.3,a\n", "'a', 'b', 'c'"),
    ],
)
def test_where_there_is_nothing_to_decide_the_option_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(content)
    with pytest.raises(FileError, match=message):
        read_source(path, Columns(positive="a"))
    with pytest.raises(ValueError, match=message):
        statistics_duckdb(path, columns=Columns(positive="a"), risk=True)


def test_recalibrate_and_apply_take_the_same_class(tmp_path: Path, capsys: Screen) -> None:
    path, saved = table(tmp_path / "loans.csv"), tmp_path / "c.safetensors"
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("y_prob\n0.1\n0.2\n")
    fit = ("recalibrate", "--fit", path, "--method", "temperature", "--save", saved)
    assert ended(capsys, *fit, "--apply", new, "--out", out, "--positive", "default").status == 0
    header, first, _ = out.read_text().splitlines()
    assert header == "probabilities_good,probabilities_default"
    assert float(first.split(",")[1]) < 0.3
    refused(capsys, "give --positive default", "apply", path, "--calibrator", saved)
    assert ended(capsys, "apply", path, "--calibrator", saved, "--positive", "default").status == 0
    refused(capsys, "fitted on the values of 'default'", "apply", new, "--calibrator", saved, "--positive", "good")
