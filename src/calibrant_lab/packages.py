"""What training from the command line needs besides the core."""

from importlib.util import find_spec

NEEDED = ("lightning", "tensorboard", "matplotlib", "jinja2", "pydantic", "filelock")


def require_training_packages() -> None:
    """Say in one sentence what is missing, before any work is done."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f"the laboratory needs {', '.join(missing)}: pip install 'calibrant[lab]'")
