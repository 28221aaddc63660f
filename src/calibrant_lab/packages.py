"""Packages that the laboratory needs."""

from importlib.util import find_spec

NEEDED = ("lightning", "tensorboard", "matplotlib", "jinja2", "pydantic", "filelock")


def require_training_packages() -> None:
    """Raise an error that names missing packages, before any work is done."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f"the laboratory needs {', '.join(missing)}: pip install 'calibrant[lab]'")
