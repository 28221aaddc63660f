"""What the guides show at a prompt is what the code prints, and every method has a page."""

import doctest
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import calibrant as cal
from benchmarks import trust_table
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


def test_the_comparison_on_the_trust_page_is_that_of_the_runs() -> None:
    runs = json.loads(trust_table.KEPT.read_text())["runs"]
    assert trust_table.START + trust_table.comparison(runs) + trust_table.END in trust_table.PAGE.read_text()


@pytest.mark.parametrize("name", [*OBJECTIVES, *CALIBRATORS, "calibrant.posthoc.ConformalClassifier"])
def test_every_method_has_a_page_of_its_own(name: str) -> None:
    pages = [path for path, text in PAGES.items() if path.parent.name == "methods" and f"{{class}}`{name}`" in text]
    assert len(pages) == 1
