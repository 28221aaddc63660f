"""tools/versions.py, which `make test-versions` runs, takes extras and bounds from pyproject.toml."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools/versions.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a source archive has no tools")


def lower_bounds(pyproject: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = runpy.run_path(str(SCRIPT))["lower_bounds"](pyproject)
    return found


def test_every_requirement_has_its_lower_bound() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    groups = [pyproject["project"]["dependencies"], *extras.values(), pyproject["dependency-groups"]["test"]]
    wanted = [each for group in groups for each in group]
    names = {re.split(r"[>\[]", each)[0] for each in wanted} - {"calibrant"}
    assert set(lower_bounds(pyproject)) == names
    assert {"torch", "numpy", "lightning", "ray"} <= names
    script = SCRIPT.read_text()
    (installed,) = re.findall(r"\{ROOT\}\[([\w,]+)\]", script)
    assert set(installed.split(",")) <= set(extras)
    assert all((ROOT / path).exists() for path in re.findall(r'"(tests/[\w/.]+)"', script))


@pytest.mark.parametrize(
    ("extra", "error"),
    [("calibrant[scale]", r"calibrant\[scale\] names scale, which is no extra"), ("ray", "ray has no lower bound")],
)
def test_a_mistake_in_pyproject_is_named(extra: str, error: str) -> None:
    with pytest.raises(SystemExit, match=error):
        lower_bounds(
            {
                "project": {"dependencies": [], "optional-dependencies": {"all": [extra]}},
                "dependency-groups": {"test": []},
            }
        )
