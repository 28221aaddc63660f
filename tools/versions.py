"""Run the tests that other packages can break, with the oldest versions that pyproject.toml allows and with the newest.

    python tools/versions.py                                # the oldest on Python 3.11, the newest on 3.11 to 3.13
    python tools/versions.py oldest -- tests/training -x    # one of them, and arguments for pytest
    python tools/versions.py oldest --environment FOLDER    # in an environment that has its torch already

The last lines say what ran. Environments are made by uv, which finds a Python on this machine or fetches one, and are
kept in .venv-versions: the oldest torch and its CUDA libraries, over 5 GB, are downloaded once. A Python that cannot be
had, or that torch has no wheel for, is reported and skipped.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv-versions"
PYTHONS = ("3.11", "3.12", "3.13")
# Where wheels stand locally the newest torch is one of them, and no other build of it is fetched.
LINKS = os.environ.get("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", "").replace(" ", ","))
QUICK = (
    "tests/losses", "tests/metrics", "tests/posthoc", "tests/training", "tests/sklearn", "tests/report",
    "tests/commands", "tests/files", "tests/test_cli.py", "tests/lab/test_methods.py",
    "tests/lab/test_plugins.py", "tests/lab/test_recipes.py",
    "tests/lab/trials/test_configuration.py", "tests/lab/trials/test_run.py", "tests/lab/trials/test_store.py",
    "-m", "not slow",
)  # fmt: skip
# Nothing quick starts Spark or Ray.
SLOW = ("tests/metrics/test_scale.py", "tests/lab/test_plugins.py", "-m", "slow", "-k", "spark or ray")
# What other packages deprecate in each other, or leave open, is not what this is about.
IGNORED = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "ResourceWarning")


def main() -> int:
    """Run what was asked for, and print what ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help="oldest, newest; both by default")
    parser.add_argument("--environment", type=Path, help="an environment to install into, for one of them")
    given = sys.argv[1:]
    place = given.index("--") if "--" in given else len(given)
    asked, pytest = parser.parse_args(given[:place]), given[place + 1 :]
    which = asked.which or ["oldest", "newest"]
    if not {*which} <= {"oldest", "newest"} or (asked.environment and len(which) > 1):
        parser.error("name oldest or newest, and only one of them with --environment")
    bounds = lower_bounds(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    runs = [
        (each, python)
        for each in which
        for python in (PYTHONS[:1] if each == "oldest" or asked.environment else PYTHONS)
    ]
    reports = [
        f"{each}, Python {python}: {_run(each, python, asked.environment, bounds, pytest)}" for each, python in runs
    ]
    print("\n".join(reports))
    return int(any("FAILED" in report for report in reports))


def lower_bounds(pyproject: dict[str, Any]) -> dict[str, str]:
    """Lowest version of every package that the library, one of its extras or its tests need."""
    extras: dict[str, list[str]] = pyproject["project"]["optional-dependencies"]
    groups = [pyproject["project"]["dependencies"], *extras.values(), pyproject["dependency-groups"]["test"]]
    found = {}
    for requirement in [each for group in groups for each in group]:
        if own := re.fullmatch(r"calibrant\[([\w,-]+)\]", requirement):
            if unknown := {*own[1].split(",")} - {*extras}:
                sys.exit(f"pyproject.toml: {requirement} names {', '.join(sorted(unknown))}, which is no extra")
        elif bound := re.match(r"([\w.-]+)>=([\w.]+)", requirement):
            found[bound[1]] = bound[2]
        else:
            sys.exit(f"pyproject.toml: {requirement} has no lower bound: write {requirement}>= and a version")
    return found


def _run(which: str, python: str, environment: Path | None, bounds: dict[str, str], pytest: Sequence[str]) -> str:
    folder = environment or PLACE / f"{which}-{python}"
    if not folder.exists() and not _uv("venv", "--python", python, folder):
        return "skipped, no such Python"
    install = ("pip", "install", "--python", folder)
    pins = [f"{name}=={bound}" for name, bound in bounds.items()]
    if which == "newest":
        local = ("--no-deps", "--no-index") if LINKS else ()
        if not _uv(*install, "--upgrade", *local, "torch"):
            return "skipped, no torch for it"
        pins = [f"torch=={_versions(folder)['torch']}"]  # its build included: others may have the same number
    PLACE.mkdir(exist_ok=True)
    constraints = PLACE / "pins.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    wanted = ("--upgrade", "--constraint", constraints, "--editable", f"{ROOT}[all,mlflow,wandb]", "--group", "test")
    if not _uv(*install, *wanted):
        return "FAILED to install"
    versions = _versions(folder)
    outcomes = [_tests(folder, part) for part in ([pytest] if pytest else [QUICK, SLOW])]
    return "\n  ".join([*outcomes, "with " + ", ".join(f"{name} {versions[name.lower()]}" for name in bounds)])


def _tests(folder: Path, arguments: Sequence[str]) -> str:
    results = PLACE / "results.xml"
    results.unlink(missing_ok=True)
    command: list[str | Path] = [
        folder / "bin/python",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--junitxml={results}",
    ]
    command += ["--timeout", "600", *(part for name in IGNORED for part in ("-W", f"ignore::{name}"))]
    passed = _succeeds([*command, *arguments])
    if not results.exists():
        return "FAILED before any test ran"
    suite = ElementTree.parse(results).getroot()[0]  # noqa: S314 (written by the command above)
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    bad = count["failures"] + count["errors"]
    reasons = Counter(skip.attrib["message"] for skip in suite.iter("skipped"))
    skipped = "".join(f"\n    {number} skipped: {reason}" for reason, number in reasons.items())
    return (
        f"{'passed' if passed else 'FAILED'}: {count['tests'] - bad - count['skipped']} passed, {bad} failed{skipped}"
    )


def _versions(folder: Path) -> dict[str, str]:
    listed = subprocess.check_output(
        [_tool(), "pip", "list", "--quiet", "--format=json", "--python", folder], text=True
    )
    return {package["name"].lower(): package["version"] for package in json.loads(listed)}


def _tool() -> Path:
    uv = PLACE / "uv/bin/uv"
    if not uv.exists():
        subprocess.run([sys.executable, "-m", "venv", PLACE / "uv"], check=True)
        subprocess.run([PLACE / "uv/bin/pip", "install", "--quiet", "uv"], check=True)
    return uv


def _uv(*arguments: str | Path) -> bool:
    return _succeeds([_tool(), "--quiet", *arguments])


def _succeeds(command: list[str | Path]) -> bool:
    # The pins that `make` exports are what this is to do without; uv has other names for pip's settings.
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PYTHONPATH")}
    environment |= {"UV_CACHE_DIR": str(PLACE / "cache"), "OMP_NUM_THREADS": "1"}
    environment |= {"UV_FIND_LINKS": LINKS} if LINKS else {}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
