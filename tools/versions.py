"""Run the core tests in fresh environments: with the oldest versions that pyproject.toml allows, and with the newest.

    python tools/versions.py                                # the oldest on Python 3.11, the newest on 3.11 to 3.13
    python tools/versions.py oldest -- tests/training -x    # one of them, and arguments for pytest

Environments stand in .venv-versions and are made by uv, which finds a Python on this machine or fetches one. A Python
for which there is no environment to be had is reported and skipped.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv-versions"
EXTRAS = ("lightning", "hf", "streaming", "report", "scale", "lab")
TOOLS = ("pytest>=8", "pytest-timeout>=2", "hypothesis>=6.100")
PYTHONS = ("3.11", "3.12", "3.13")
TORCH = "torch==2.13.0"  # the only release that these tests are run with
# Where wheels stand locally torch is one of them, and no other build of it is fetched.
LINKS = os.environ.get("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", "").replace(" ", ","))
TESTS = (
    "tests/objectives", "tests/metrics", "tests/training", "tests/estimators", "tests/test_cli.py",
    "tests/lab/test_methods.py", "tests/lab/test_plugins.py", "tests/lab/test_recipes.py", "tests/lab/test_settings.py",
    "tests/lab/trials/test_configuration.py", "tests/lab/trials/test_run.py", "tests/lab/trials/test_store.py",
)  # fmt: skip
# What other packages deprecate in each other is not what this is about.
IGNORED = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")


def main() -> int:
    """Run what was asked for, and print a line about each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help="oldest, newest; both by default")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions of Python for the newest")
    given = sys.argv[1:]
    place = given.index("--") if "--" in given else len(given)
    asked, pytest = parser.parse_args(given[:place]), given[place + 1 :]
    which = asked.which or ["oldest", "newest"]
    runs = [(each, python) for each in which for python in (PYTHONS[:1] if each == "oldest" else asked.python)]
    outcomes = {f"{each} versions, Python {python}": _run(each, python, pytest) for each, python in runs}
    print("\n".join(f"{run}: {outcome}" for run, outcome in outcomes.items()))
    return int("failed" in outcomes.values())


def _run(which: str, python: str, pytest: list[str]) -> str:
    folder = PLACE / f"{which}-{python}"
    if not _uv("venv", "--clear", "--python", python, folder):
        return "skipped, no such Python"
    install = ("pip", "install", "--python", folder)
    if not _uv(*install, TORCH, *(("--no-deps", "--no-index") if LINKS else ())):
        return "skipped, no torch for it"
    # Its build is part of the pin: 2.13.0 may also be had as other builds than the one just installed.
    build = subprocess.check_output(
        [folder / "bin/python", "-c", "from importlib import metadata; print(metadata.version('torch'))"], text=True
    )
    pins = folder / "pins.txt"
    pins.write_text("\n".join([f"torch=={build}", *(_lower_bounds() if which == "oldest" else [])]), encoding="utf-8")
    if not _uv(*install, "--constraint", pins, "--editable", f"{ROOT}[{','.join(EXTRAS)}]", *TOOLS):
        return "failed"
    command: list[str | Path] = [folder / "bin/python", "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", "--timeout", "300"]
    command += [part for name in IGNORED for part in ("-W", f"ignore::{name}")]
    names_tests = any((ROOT / argument.partition("::")[0]).exists() for argument in pytest)
    return "passed" if _succeeds([*command, *pytest, *(() if names_tests else TESTS)]) else "failed"


def _lower_bounds() -> list[str]:
    """Pins to the lower bounds of pyproject.toml; torch has one of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [each for name in EXTRAS for each in project["optional-dependencies"][name]]
    found = [re.match(r"([\w-]+)>=([\w.]+)", each) for each in wanted]
    return [f"{each[1]}=={each[2]}" for each in found if each is not None and each[1] != "torch"]


def _uv(*arguments: str | Path) -> bool:
    uv = PLACE / "uv/bin/uv"
    if not uv.exists():
        subprocess.run([sys.executable, "-m", "venv", PLACE / "uv"], check=True)
        subprocess.run([PLACE / "uv/bin/pip", "install", "--quiet", "uv"], check=True)
    return _succeeds([uv, "--quiet", *arguments])


def _succeeds(command: list[str | Path]) -> bool:
    # The pins that `make` exports are what this is to do without; uv has other names for pip's settings.
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PYTHONPATH")}
    environment |= {"UV_CACHE_DIR": str(PLACE / "cache")} | ({"UV_FIND_LINKS": LINKS} if LINKS else {})
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
