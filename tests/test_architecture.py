"""The rules of the house, each with one test that lists every offender: imports, torch, folders and tests."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import calibrant

SOURCE = Path(calibrant.__file__).parents[1]
TESTS = Path(__file__).parent
ARCHITECTURE = TESTS.parent / "docs" / "architecture.md"

# Package -> room (a folder, or a file at its top) -> the rooms that it may import.
ALLOWED: dict[str, dict[str, str]] = {
    "calibrant": {
        "__init__": "",  # everything is loaded when first used
        "torch_private": "",
        "atomic": "",
        "frames": "",
        "distributed": "",
        "numerics": "torch_private",
        "inputs": "frames",
        "losses": "torch_private numerics inputs distributed",
        "functional": "losses",
        "metrics": "files frames inputs posthoc",
        "posthoc": "__init__ atomic torch_private numerics inputs frames",
        "sklearn": "inputs posthoc",
        "files": "atomic inputs metrics",
        "report": "files frames inputs metrics posthoc",
        "training": "torch_private numerics inputs losses distributed posthoc",
        "commands": "files inputs metrics posthoc report",
        "cli": "__init__ commands files report",
        "__main__": "cli",
    },
    "calibrant_lab": {
        "__init__": "",  # everything is loaded when first used
        "plugins": "",
        "settings": "plugins",
        "data": "",
        "models": "",
        "methods": "plugins settings",
        "recipes": "data models plugins settings",
        "scores": "plugins",
        "score_table": "scores",
        "trials": "data methods plugins recipes scores settings score_table",
        "sweeps": "methods plugins recipes scores settings score_table trials",
        "shift": "data models plugins scores sweeps trials",
        "paper": "methods plugins recipes scores shift sweeps score_table trials",
        "train": "paper plugins scores score_table trials",
        "search": "search_figure",
        "search_figure": "",
        "catalogue": "methods recipes settings",
        "demo": "paper recipes scores sweeps score_table trials",
        "cli": "catalogue demo paper train trials",
    },
}
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ALLOWED
    for path in sorted((SOURCE / package).rglob("*.py"))
}
AUDIT = {"atomic", "inputs", "frames", "metrics", "posthoc", "files", "report", "sklearn", "commands", "cli"}
WITH_TORCH = {"calibrant.metrics.streaming", "calibrant.posthoc.modules"}  # by their nature


def names_of(node: ast.AST) -> list[str]:
    """The dotted names that an import statement binds."""
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide the arrows"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@cache
def imports_of(path: Path, *, at_the_top: bool = False) -> frozenset[str]:
    """Dotted names that a file imports; not those for types alone, and on request not those inside functions."""
    left_out: tuple[type[ast.AST], ...] = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda) if at_the_top else ()
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    for node in nodes:
        found.update(names_of(node))
        for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        nodes += [] if for_types or isinstance(node, left_out) else ast.iter_child_nodes(node)
    return frozenset(found)


def owners(names: frozenset[str]) -> set[str]:
    """The modules of ours that dotted names are, or are in."""
    found = set()
    for name in names:
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {""}


def place_of(module: str) -> tuple[str, str]:
    """Package and room of a module."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0] or "__init__"


def test_imports_follow_the_arrows() -> None:
    wrong: list[str] = []
    used: set[tuple[str, str, str]] = set()
    for module, path in MODULES.items():
        package, room = place_of(module)
        allowed = {room, *ALLOWED[package].get(room, "").split()}
        wrong += [] if room in ALLOWED[package] else [f"{module}: {room} is not in ALLOWED"]
        for other in owners(imports_of(path)) - {module}:
            other_package, other_room = place_of(other)
            follows = other_room in allowed if other_package == package else package == "calibrant_lab"
            wrong += [] if follows else [f"{module} imports {other}"]
            used.add((package, room, other_room))
    for package, arrows in ALLOWED.items():
        wrong += [
            f"nothing in {room} of {package} imports {other}"
            for room, others in arrows.items()
            for other in others.split()
            if (package, room, other) not in used
        ]
    assert not wrong


def test_no_module_imports_itself_by_way_of_others() -> None:
    # The packages themselves are left out: an import of a part of one imports the package first.
    graph = {module: owners(imports_of(path)) - {module, *ALLOWED} for module, path in MODULES.items()}
    try:
        TopologicalSorter({module: others for module, others in graph.items() if module not in ALLOWED}).prepare()
    except CycleError as error:
        raise AssertionError(f"a cycle: {' <- '.join(error.args[1])}") from None


def loaded_with(module: str) -> set[str]:
    """A module of ours, and all that its import loads, packages included."""
    found, left = set[str](), [module]
    while left:
        one = left.pop()
        if one in MODULES and one not in found:
            found.add(one)
            left += [one.rpartition(".")[0], *owners(imports_of(MODULES[one], at_the_top=True))]
    return found


def test_the_audit_side_imports_no_torch() -> None:
    torches = {
        module
        for module, path in MODULES.items()
        if any(
            name.split(".")[0] in ("torch", "torchmetrics", "lightning") for name in imports_of(path, at_the_top=True)
        )
    }
    wrong = {
        f"{module} by way of {', '.join(sorted(found))}"
        for module in MODULES
        if place_of(module)[0] == "calibrant" and place_of(module)[1] in AUDIT and module not in WITH_TORCH
        if (found := loaded_with(module) & torches)
    }
    assert not wrong


WITHOUT_TORCH = """
import importlib, sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec  # scipy takes None in sys.modules for torch
PathFinder.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(name, error)
"""


def test_the_audit_side_can_be_imported_where_torch_is_not_installed() -> None:
    names = [
        module
        for module in MODULES
        if place_of(module)[0] == "calibrant" and place_of(module)[1] in AUDIT and module not in WITH_TORCH
    ]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *names], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def loaded_by(code: str, before: str = "") -> set[str]:
    """Packages that a fresh process loads for some code; not those it has loaded before."""
    script = f"import sys\n{before}\nbefore = set(sys.modules)\n{code}\nprint('\\n', *set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_an_import_loads_only_what_it_needs() -> None:
    assert loaded_by("import calibrant", before="import torch") <= {"calibrant"}
    command = "from calibrant.cli import app\napp(['evaluate', '--help'], result_action='return_value')"
    loaded = loaded_by(command)
    assert "calibrant" in loaded
    assert not loaded & {"calibrant_lab", "pydantic", "lightning", "matplotlib", "transformers"}


def rooms(folder: Path) -> set[str]:
    """Names of the folders with Python files."""
    return {path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))}


def test_the_architecture_page_names_every_folder() -> None:
    page = ARCHITECTURE.read_text()
    folders = {room for package in ALLOWED for room in rooms(SOURCE / package)} | {"tests", "benchmarks", "tools"}
    assert {room for room in folders if f"`{room}/`" not in page} == set()


def test_tests_are_where_their_room_is() -> None:
    """The rule in CONTRIBUTING: a folder for each room; in it, a file for each module or property."""
    wrong = []
    for folder, package in ((TESTS, "calibrant"), (TESTS / "lab", "calibrant_lab")):
        source = {path.stem for path in (SOURCE / package).iterdir()} | ({"lab"} if package == "calibrant" else set())
        wrong += [f"{folder.name}/{room}" for room in rooms(folder) - source]
    assert not wrong


def test_no_test_imports_another() -> None:
    wrong = [
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("test_*.py")
        if any(part.startswith("test_") for name in imports_of(path) for part in name.split(".")[:-1])
    ]
    assert not wrong
