"""Sphinx configuration."""

import re
from pathlib import Path
from typing import Any

import calibrant

project = "Calibrant"
author = "The Calibrant authors"
version = release = calibrant.__version__
extensions = ["cyclopts.ext.sphinx", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
html_title = "Calibrant"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
exclude_patterns = ["_build", "_gallery"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
nitpicky = True
nitpick_ignore_regex = [(".*", r"(?!calibrant(\.\w+){1,2}$).*")]  # public names are looked up, no others


def draw_gallery(_: object) -> None:
    """Draw the figures of gallery.md by its own code."""
    folder = Path(__file__).parent
    (folder / "_gallery").mkdir(exist_ok=True)
    names: dict[str, Any] = {}
    place = 0
    for code in re.findall(r"^```python\n(.*?)^```$", (folder / "gallery.md").read_text(), re.DOTALL | re.MULTILINE):
        exec(code, names)  # noqa: S102 (our own page)
        if "figure" in names:
            place += 1
            names.pop("figure").savefig(folder / f"_gallery/{place}.svg", metadata={"Date": None})


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", draw_gallery)
