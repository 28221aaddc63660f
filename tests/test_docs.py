"""What the guides show at a prompt is what the code prints, and every method has a page."""

import doctest
import json
import re
from collections import defaultdict
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cal
from tests.commands.test_evaluate import run

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {path: path.read_text() for path in sorted(DOCS.rglob("*.md")) if DOCS / "_build" not in path.parents}
OBJECTIVES = [f"calibrant.{name}" for name in cal.__all__ if name.endswith("Loss")]
CALIBRATORS = [f"calibrant.posthoc.{kind.__name__}" for kind in cal.posthoc.METHODS.values()]


def blocks(guide: Path, language: str) -> list[str]:
    """Blocks of code of a guide in one language."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGES[guide], flags=re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def first_program(guide: Path) -> str:
    """The block that makes what the others use."""
    return next((block for block in blocks(guide, "python") if block.startswith("import ")), "")


def words(text: str) -> str:
    """The text with a # for every number, which may differ between machines in its last digit."""
    return " ".join(re.sub(r"[\d.,]*\d", "#", text).split())


@pytest.mark.slow_after(10)
@pytest.mark.parametrize(
    "guide",
    [path for path, text in PAGES.items() if ">>> " in text],
    ids=lambda path: path.relative_to(DOCS).with_suffix("").as_posix(),
)
def test_prompts_in_a_guide_give_what_it_says(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = blocks(guide, "python")
    prompts = "\n".join(block for block in python if ">>> " in block)
    assert prompts.count(">>> ") == PAGES[guide].count(">>> "), "a prompt outside a python block"
    names: dict[str, Any] = {}
    exec(first_program(guide), names)  # noqa: S102 (our own guide)
    test = doctest.DocTestParser().get_doctest(prompts, names, guide.name, str(guide), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("guide", sorted(DOCS.glob("audit_*.md")), ids=lambda path: path.stem)
def test_commands_in_a_guide_print_what_it_says(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(first_program(guide), {})  # noqa: S102 (our own guide)
    for block in blocks(guide, "console"):
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = shown.partition("\n")
            assert run(*shlex.split(command)[1:]) == 0
            printed, place = words(capsys.readouterr().out), 0
            for part in map(words, output.split("…")):
                assert part in printed[place:]
                place = printed.index(part, place) + len(part)


def test_the_first_lines_of_the_readme_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS.parent / "README.md").read_text()
    assert len(text.splitlines()) < 120
    first = re.search(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert first is not None
    exec(first[1], {})  # noqa: S102 (our own readme)
    assert "ECE" in capsys.readouterr().out


def test_the_table_of_the_readme_is_that_of_the_arena() -> None:
    arena = json.loads((DOCS.parent / "results/arena/arena.json").read_text())
    groups = ["networks, 3 to 10 classes", "networks, 100 classes", "networks, binary"]
    groups += ["tabular, multi-class", "tabular, binary"]
    rows = []
    for group in groups:
        cases = [place for place, case in enumerate(arena["cases"]) if case[1] == group]
        means = defaultdict[str, float](lambda: float("inf"))
        for method, result in arena["results"].items():
            losses = [result["log_loss"][place] for place in cases]
            if None not in losses:
                means[method] = float(np.mean(losses))
        own = {"nothing", "calibrant: temperature", "calibrant: auto"}
        peer = min(mean for method, mean in means.items() if not method.startswith(("calibrant", "nothing")))
        assert min(means, key=means.__getitem__) == "calibrant: auto" and own < means.keys()
        found = means["nothing"], means["calibrant: temperature"], peer, means["calibrant: auto"]
        rows.append([str(len(cases)), *(f"{value:.4f}" for value in found)])
    text = (DOCS.parent / "README.md").read_text()
    shown = re.findall(r"^\| (?:networks|tables), .*?\| (.*?) \|$", text.replace("*", ""), flags=re.MULTILINE)
    assert [row.split(" | ") for row in shown] == rows


@pytest.mark.parametrize("name", [*OBJECTIVES, *CALIBRATORS, "calibrant.posthoc.ConformalClassifier"])
def test_every_method_has_a_page_of_its_own(name: str) -> None:
    pages = [path for path, text in PAGES.items() if path.parent.name == "methods" and f"{{class}}`{name}`" in text]
    assert len(pages) == 1
