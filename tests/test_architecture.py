"""The imports are the architecture: who may import whom, and what `import calibrant` may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

PACKAGE = Path(calibrant.__file__).parent

# Room -> rooms it may import. A file at the top of the package is a room of its own.
ALLOWED: dict[str, set[str]] = {
    "torch_private": set(),
    "numerics": {"torch_private"},
    "options": set(),
    "distributed": set(),
    "known_gradient": {"numerics"},
    "hints": {"numerics"},
    "inputs": {"torch_private", "numerics", "options", "hints"},
    "multi_label": {"numerics", "inputs"},
    "objectives": {"numerics", "known_gradient", "hints", "inputs", "multi_label", "distributed"},
    "functional": {"objectives"},
    "__init__": {"functional", "objectives", "metrics", "posthoc", "report", "training"},
    "metrics": {"numerics", "known_gradient", "inputs"},
    "posthoc": {"numerics", "inputs"},
    "report": {"files", "known_gradient", "metrics", "posthoc"},
    "files": {"metrics", "inputs"},
    "training": {
        "__init__",
        "torch_private",
        "numerics",
        "inputs",
        "distributed",
        "functional",
        "objectives",
        "metrics",
        "posthoc",
        "files",
        "report",
    },
    "commands": {"files", "metrics", "posthoc", "report"},
    "cli": {"__init__", "commands", "metrics"},
    "__main__": {"cli"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of ours that a file imports, at the top or inside a function."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the arrows"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, room, *_ = [*name.split("."), ""]
            assert package != "calibrant_lab", f"{path}: the library never imports the laboratory"
            if package == "calibrant":
                rooms.add(room if room in ALLOWED else "__init__")
    return rooms


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"{room} is not in the plan: add it with the rooms it may import"
    assert imported_rooms(path) - {room} <= ALLOWED[room]


def test_every_room_in_the_plan_exists() -> None:
    assert {room_of(path) for path in FILES} == set(ALLOWED)


def test_importing_calibrant_loads_nothing_but_torch_and_itself() -> None:
    # `make bench` shows the seconds; what is loaded is what they depend on, and does not vary by machine.
    code = (
        "import sys, torch; before = set(sys.modules); import calibrant; "
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('calibrant')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
