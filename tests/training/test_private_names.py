"""Private names of torch, Lightning and transformers are used in one file each, where a new release is looked after."""

import ast
from pathlib import Path

import calibrant
import calibrant_lab

PACKAGE, LAB = Path(calibrant.__file__).parent, Path(calibrant_lab.__file__).parent
HOMES = {"torch_private.py"}
# Objects whose private names are our own, or part of a documented protocol.
OWN = {"self", "super()", "cls", "loaded"}
PROTOCOL = {"_replace", "_asdict", "_exit", "_getframe", "_apply", "_load_from_state_dict", "_repr_html_", "_fields"}
PROTOCOL |= {"_safe_indexing"}  # in the API reference of scikit-learn
FILES = [path for package in (PACKAGE, LAB) for path in sorted(package.rglob("*.py")) if path.name not in HOMES]


def private_names(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value)
            found |= {node.attr} if of not in OWN else set()
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - PROTOCOL


def test_private_names_stay_in_their_file() -> None:
    assert not {path.name: names for path in FILES if (names := private_names(path))}


def test_the_search_finds_them() -> None:
    assert {"_BatchNorm", "_assert_async"} <= private_names(PACKAGE / "torch_private.py")
