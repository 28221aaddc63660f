"""Sphinx configuration."""

import calibrant

project = "Calibrant"
author = "The Calibrant authors"
version = release = calibrant.__version__
extensions = ["cyclopts.ext.sphinx", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
html_title = "Calibrant"
exclude_patterns = ["_build"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": False}
napoleon_google_docstring = True
napoleon_custom_sections = ["Shapes"]
nitpicky = False
