import itertools
import re
import sys
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from calibrant import metrics, report
from calibrant.files import FileError
from calibrant.metrics.intervals import compare
from calibrant.report.page import render
from tests.pages import Checker, assert_loads_nothing, assert_references_resolve
from tests.report.data import EDGE_CASES, classifier, confidences

HOSTILE = "<script>alert(1)</script>"


@cache
def page_of(*names: str) -> str:
    given = [classifier(samples=300, sharpness=1.0 + place) for place in range(len(names))]
    audits = [report.audit(name, one, draws=30) for name, one in zip(names, given, strict=True)]
    pairs = [(names[0], name, compare(given[0], one)) for name, one in zip(names[1:], given[1:], strict=True)]
    return render(audits, pairs)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("names", [("model",), ("a", "b", "c")])
def test_a_page_is_well_formed_and_loads_nothing(names: tuple[str, ...]) -> None:
    page = page_of(*names)
    assert_loads_nothing(page)
    assert "http:" not in page
    assert "https:" not in page
    assert len(page.encode()) < 330_000


@pytest.mark.slow
def test_ids_are_unique_and_every_reference_has_its_own() -> None:
    assert_references_resolve(page_of("a", "b"))


def test_headings_are_in_order_and_figures_say_what_they_show() -> None:
    for names in (("model",), ("a", "b")):
        found = Checker(page_of(*names))
        levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        figures = [attributes for tag, attributes in found.tags if tag == "svg"]
        assert len(figures) == 4 * len(names)
        assert all(figure["role"] == "img" for figure in figures)
        labels = [str(figure["aria-label"]) for figure in figures]
        assert len(set(labels)) == len(labels)
        assert all(sum(f" of {name}" in label for label in labels) == 4 for name in names)


def test_colours_follow_the_scheme_of_the_page() -> None:
    page = page_of("model")
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(figures) == 4
    for figure in figures:
        assert "var(--accent)" in figure
        assert re.findall(r"#[0-9a-f]{6}\b", figure) == []
        assert "font-family" not in figure


@pytest.mark.slow
def test_the_same_audits_give_the_same_bytes() -> None:
    first = page_of("a", "b")
    with mpl.rc_context({"svg.hashsalt": "other", "font.size": 20}):
        assert page_of.__wrapped__("a", "b") == first


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", EDGE_CASES)
def test_edge_cases_have_their_page(name: str) -> None:
    given = EDGE_CASES[name]
    page = render([report.audit(name, given, draws=20)])
    Checker(page)
    assert ("Which classes are the worst?" in page) == (given.task == "multi-class")
    assert "nan" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL).lower()
    if name == "a thousand classes":
        assert "The 20 classes with the largest gaps. Judged are the 50 of 1,000 that" in page


def test_the_page_shows_every_score_with_its_convention_and_before_and_after() -> None:
    found = report.audit("model", classifier(samples=500, sharpness=2.0), draws=30, seed=4)
    texts = Checker(render([found])).texts
    for entry in found.scores:
        assert entry.label.strip() in texts
        assert entry.convention in texts
    assert found.repair is not None
    assert found.repair.description in texts
    assert f"{found.repair.scores.log_loss:.4f}" in texts
    assert any("30 data sets" in text and "seed 4" in text for text in texts)


@pytest.mark.slow
def test_models_of_different_kinds_share_a_page() -> None:
    kinds = {"all classes": classifier(samples=300), "few": EDGE_CASES["three samples"]}
    texts = Checker(render([report.audit(name, given, draws=20) for name, given in kinds.items()])).texts
    assert any("3 samples are too few" in text for text in texts)
    assert any("300 samples" in text for text in texts)


@pytest.mark.slow
def test_a_comparison_says_which_model_is_better() -> None:
    sure, honest = classifier(1000, sharpness=3.0), classifier(1000)
    audits = [report.audit(name, one, draws=20) for name, one in (("sure", sure), ("honest", honest))]
    texts = Checker(render(audits, [("sure", "honest", compare(sure, honest))])).texts
    assert texts[texts.index("better calibrated") :].index("honest") < 30
    same = metrics.predictions(np.full(100, 0.8), np.arange(100) % 5 < 4)
    audits = [report.audit(name, same, draws=20) for name in ("a", "b")]
    assert "the data cannot tell" in render(audits, [("a", "b", compare(same, same))])


def test_models_that_are_not_compared_are_named() -> None:
    audits = [report.audit(name, classifier(samples), draws=10) for name, samples in (("a", 90), ("b", 60))]
    texts = Checker(render(audits, [("a", "b", "they do not have the same samples")])).texts
    assert any("they do not have the same samples" in text for text in texts)
    assert "better calibrated" not in texts


def test_names_stay_text_and_lose_what_would_turn_the_text_around_them() -> None:
    given = EDGE_CASES["three samples"]
    names = (HOSTILE, "a\u202eb", "c\x00\x1bd\u2066", "caf\udce9")
    reason = (HOSTILE, "a\u202eb", "they are few")
    page = render([report.audit(name, given, draws=10) for name in names], [reason], opening=[f"{HOSTILE}\u202e"])
    assert {letter for letter in page if unicodedata.category(letter) in ("Cc", "Cf", "Cs")} <= {"\n", "\xad"}
    for name in ("ab", "c d", "caf\ufffd"):
        assert page.count(f"<bdi>{name}</bdi>") >= 4
    assert "<script" not in page
    found = Checker(page)
    assert found.texts.count(HOSTILE) >= 6
    assert any(HOSTILE in label for label in found.values("aria-label"))


def test_every_score_is_explained_once() -> None:
    found = report.audit("model", classifier(samples=300), draws=10)
    page = render([found])
    labels = re.findall("<dt>(.*?)</dt>", page[page.index("What the scores mean") :])
    assert labels == [entry.label.strip() for entry in found.scores]
    again = render([found, replace(found, name="again")])
    assert again.count("<dt>") > page.count("<dt>")
    assert re.findall("<dt>(.*?)</dt>", again[again.index("What the scores mean") :]) == labels


def test_a_report_needs_an_audit() -> None:
    with pytest.raises(ValueError, match="at least one audit"):
        render([])


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audits = [report.audit("model", confidences((0.9, 0.8, 50)), draws=10)]
    path = tmp_path / "out.html"
    report.write_report(path, audits)
    page = path.read_text(encoding="utf-8")
    assert page == render(audits)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileError, match="disk full"):
        report.write_report(path, audits, opening=["another"])
    assert path.read_text(encoding="utf-8") == page
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("package", "use"), [("jinja2", "write_report"), ("matplotlib", "figures")])
def test_without_the_extra_the_error_names_it(package: str, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("page", "figures", "style"):
        monkeypatch.delitem(sys.modules, f"calibrant.report.{module}", raising=False)
        monkeypatch.delattr(report, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{package}: pip install 'calibrant\[report\]'"):
        getattr(report, use)
