"""What the guides show at a prompt is what the code prints, and every method has a page."""

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import calibrant as cal

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {path: path.read_text() for path in sorted(DOCS.rglob("*.md")) if DOCS / "_build" not in path.parents}
OBJECTIVES = [f"calibrant.{name}" for name in cal.__all__ if name.endswith("Loss")]
CALIBRATORS = [f"calibrant.posthoc.{kind.__name__}" for kind in cal.posthoc.METHODS.values()]


@pytest.mark.parametrize(
    "guide",
    [path for path, text in PAGES.items() if ">>> " in text],
    ids=lambda path: path.relative_to(DOCS).with_suffix("").as_posix(),
)
def test_prompts_in_a_guide_give_what_it_says(guide: Path) -> None:
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGES[guide], flags=re.DOTALL | re.MULTILINE)
    python = [block for language, block in blocks if language == "python"]
    prompts = "\n".join(block for block in python if ">>> " in block)
    assert prompts.count(">>> ") == PAGES[guide].count(">>> "), "a prompt outside a python block"
    names: dict[str, Any] = {}
    exec(next((block for block in python if block.startswith("import ")), ""), names)  # noqa: S102 (our own guide)
    test = doctest.DocTestParser().get_doctest(prompts, names, guide.name, str(guide), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0


def test_the_first_lines_of_the_readme_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS.parent / "README.md").read_text()
    assert len(text.splitlines()) < 120
    first = re.search(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert first is not None
    exec(first[1], {})  # noqa: S102 (our own readme)
    assert "ECE" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*OBJECTIVES, *CALIBRATORS, "calibrant.posthoc.ConformalClassifier"])
def test_every_method_has_a_page_of_its_own(name: str) -> None:
    pages = [path for path, text in PAGES.items() if path.parent.name == "methods" and f"{{class}}`{name}`" in text]
    assert len(pages) == 1
