"""The imports are the architecture: who may import whom, inside both packages, and what an import may cost."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import calibrant

SOURCE = Path(calibrant.__file__).parents[1]
ARCHITECTURE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()

# Package -> folder, or file at its top -> those that it may import.
ALLOWED: dict[str, dict[str, set[str]]] = {
    "calibrant": {
        "torch_private": set(),
        "numerics": {"torch_private"},
        "distributed": set(),
        "arrays": {"frames"},
        "frames": set(),
        "tables": set(),
        "inputs": {"frames"},
        "losses": {"torch_private", "numerics", "arrays", "frames", "inputs", "distributed"},
        "functional": {"losses"},
        "metrics": {"arrays", "frames", "inputs", "losses", "tables"},
        "posthoc": {"torch_private", "numerics", "frames", "inputs", "losses"},
        "sklearn": {"posthoc"},
        "files": {"inputs", "metrics", "tables"},
        "report": {"files", "frames", "inputs", "metrics", "posthoc"},
        "training": {
            "__init__", "torch_private", "numerics", "losses", "distributed", "functional", "metrics", "posthoc",
            "files", "report",
        },
        "__init__": set(),  # everything is loaded when first used
        "commands": {"files", "metrics", "posthoc", "report", "tables"},
        "cli": {"__init__", "commands", "metrics"},
        "__main__": {"cli"},
    },
    "calibrant_lab": {
        "plugins": set(),
        "settings": {"plugins"},
        "methods": {"plugins", "settings"},
        "data": set(),
        "models": set(),
        "recipes": {"data", "models", "plugins", "settings"},
        "__init__": set(),  # everything is loaded when first used
        "catalogue": {"methods", "recipes", "settings"},
        "scores": {"plugins"},
        "score_table": {"scores"},
        "trials": {"data", "methods", "plugins", "recipes", "scores", "settings", "score_table"},
        "sweeps": {"methods", "plugins", "recipes", "scores", "settings", "score_table", "trials"},
        "shift": {"data", "models", "plugins", "scores", "sweeps", "trials"},
        "paper": {"methods", "plugins", "recipes", "scores", "shift", "sweeps", "score_table", "trials"},
        "train": {"paper", "plugins", "scores", "score_table", "trials"},
        "demo": {"paper", "recipes", "scores", "sweeps", "score_table", "trials"},
        "cli": {"catalogue", "demo", "paper", "train", "trials"},
    },
}  # fmt: skip
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ALLOWED
    for path in sorted((SOURCE / package).rglob("*.py"))
}


def imported(module: str) -> set[str]:
    """Modules of ours that a module imports, at the top or inside a function; not those for types alone."""
    tree = ast.parse(MODULES[module].read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide the arrows"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        if id(node) not in for_types:
            found |= {owner for name in names if (owner := owner_of(name)) is not None}
    return found - {module}


def owner_of(name: str) -> str | None:
    """The module of ours that a dotted name is, or is in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def place_of(module: str) -> tuple[str, str]:
    """Package, and folder or file at its top."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0] or "__init__"


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_arrows(module: str) -> None:
    package, place = place_of(module)
    assert place in ALLOWED[package], f"{place} is not in the plan: add it with what it may import"
    for other in imported(module):
        other_package, other_place = place_of(other)
        if other_package == package:
            assert other_place in ALLOWED[package][place] | {place}, f"{module} imports {other}"
        else:
            assert package == "calibrant_lab", f"{module} imports {other}: the library never imports the laboratory"


@pytest.mark.parametrize("package", ALLOWED)
def test_everything_in_the_plan_exists_and_every_arrow_is_used(package: str) -> None:
    used: dict[str, set[str]] = {}
    for module in MODULES:
        if place_of(module)[0] == package:
            place = place_of(module)[1]
            others = {place_of(other) for other in imported(module)}
            used.setdefault(place, set()).update(name for of, name in others if of == package and name != place)
    assert set(used) == set(ALLOWED[package])
    unused = {place: ALLOWED[package][place] - used[place] for place in used}
    assert not {place: names for place, names in unused.items() if names}


def described() -> Iterator[tuple[str, str, str]]:
    """Package, folder and file of each name in the tables of docs/architecture.md."""
    package = ""
    for line in ARCHITECTURE.splitlines():
        if line.startswith("## "):
            package = line.strip("# `").removeprefix("src/")
        if not line.startswith("| `") or package not in ALLOWED:
            continue
        places, contents, _ = re.split(r" ?\| ?", line.strip("|").strip() + " ", maxsplit=2)
        names = re.findall(r"`([\w/]+(?:\.py)?)`", places)
        for name in names:
            yield package, "", name
        for name in re.findall(r"`(\w+\.py)`", contents):
            yield package, names[0], name


@pytest.mark.parametrize("package", ALLOWED)
def test_the_architecture_page_names_every_folder_and_only_files_that_exist(package: str) -> None:
    page = [(folder, name) for of, folder, name in described() if of == package]
    for folder, name in page:
        assert (SOURCE / package / folder / name).exists(), f"{package}/{folder}{name} is not there"
    first = {name.rstrip("/").removesuffix(".py") for folder, name in page if not folder}
    assert first == set(ALLOWED[package]) - {"__init__", "__main__"}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w/]+/\w+\.py)`", ARCHITECTURE))))
def test_the_steps_of_a_command_name_files_that_exist(path: str) -> None:
    found = [SOURCE / path, *(SOURCE / package / path for package in ALLOWED), SOURCE.parent / path]
    assert any(one.exists() for one in found)


@pytest.mark.parametrize("package", ALLOWED)
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    # The package itself is left out: an import of a part of it imports the package first.
    graph = {
        module: {other for other in imported(module) if place_of(other)[0] == package and other != package}
        for module in MODULES
        if place_of(module)[0] == package and module != package
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle: {' <- '.join(error.args[1])}")


def loaded_by(code: str, before: str = "") -> set[str]:
    """Modules that a fresh process loads for some code; not those it has loaded before."""
    script = f"import sys\n{before}\nbefore = set(sys.modules)\n{code}\nprint('\\n', *set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_calibrant_loads_nothing_but_torch_and_itself() -> None:
    # `make bench` shows the seconds; what is loaded is what they depend on, and does not vary by machine.
    loaded = loaded_by("import calibrant", before="import torch")
    assert {name for name in loaded if name.split(".")[0] != "calibrant"} == set()


def test_a_command_of_the_library_loads_nothing_of_the_laboratory() -> None:
    code = "from calibrant.cli import app\napp(['evaluate', '--help'], result_action='return_value')"
    loaded = {name.split(".")[0] for name in loaded_by(code)}
    assert "calibrant" in loaded
    assert not loaded & {"calibrant_lab", "pydantic", "lightning", "matplotlib", "transformers"}
