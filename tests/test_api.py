"""The public API is what docs/api.md lists: a change of one is a change of the other."""

import importlib
import re
from collections import defaultdict
from pathlib import Path

import calibrant

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
MODULES = (
    "calibrant", "calibrant.functional", "calibrant.metrics", "calibrant.metrics.scale", "calibrant.metrics.streaming",
    "calibrant.posthoc", "calibrant.report", "calibrant.report.figures", "calibrant.sklearn", "calibrant.training",
)  # fmt: skip
PARTS = {name.removeprefix("calibrant.") for name in MODULES if name.count(".") == 1}


def listed() -> dict[str, set[str]]:
    """Names on the page by module; dotted ones are types of results, which nobody imports."""
    found: dict[str, set[str]] = defaultdict(set)
    module = ""
    for directive, name in re.findall(r"^\.\. (module|auto\w+):: (\S+)$", PAGE.read_text(), re.MULTILINE):
        if directive == "module":
            module = name
        elif "." not in name:
            found[module].add(name)
    return found


def test_the_page_lists_what_each_module_exports() -> None:
    exported = {name: set(importlib.import_module(name).__all__) for name in MODULES}
    exported["calibrant"] -= PARTS
    assert listed() == exported


def test_dir_shows_the_api_and_nothing_else() -> None:
    for name in MODULES[1:]:
        module = importlib.import_module(name)
        assert dir(module) == sorted(module.__all__), name
    assert set(dir(calibrant)) == {*calibrant.__all__, "__version__"}


def test_at_most_120_names_are_public() -> None:
    assert sum(map(len, listed().values())) <= 120
