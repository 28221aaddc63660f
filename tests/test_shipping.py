"""The shipping guide runs from top to bottom, section by section."""

import os
import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "shipping.md").read_text()
# Section -> package that it needs.
NEEDED = {
    "Hugging Face": "transformers",
    "Lightning": "lightning",
    "ONNX": "onnxruntime",
    "MLflow and Weights & Biases": "mlflow",
}
SECTIONS = dict(re.findall(r"^##? ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))


def snippets(section: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first snippet defines; files are written to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    found: dict[str, Any] = {"__name__": "guide"}
    for snippet in (*snippets("Deploy a calibrator"), "import torch"):
        exec(snippet, found)  # noqa: S102 (our own guide)
    return found


@pytest.mark.parametrize(
    "section",
    # posthoc/test_exported.py has a quick test of ONNX.
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "ONNX")) for name in SECTIONS if snippets(name)],
)
def test_a_section_runs_as_it_stands(section: str, names: dict[str, Any]) -> None:
    if section in NEEDED and find_spec(NEEDED[section]) is None:
        pytest.skip(f"{NEEDED[section]} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of other packages about each other
        for snippet in snippets(section):
            exec(snippet, names)  # noqa: S102 (our own guide)


def test_every_program_in_the_guide_is_run() -> None:
    assert sum(len(snippets(section)) for section in SECTIONS) == PAGE.count("```python")
    assert set(NEEDED) <= set(SECTIONS)


def test_the_guide_documents_every_key_of_the_header(names: dict[str, Any]) -> None:
    from calibrant import posthoc
    from calibrant.posthoc.saved import read_header

    posthoc.save(names["calibrator"], "calibrator.safetensors")
    documented = re.findall(r"^\| `(\w+)` \|", SECTIONS["Files"], flags=re.MULTILINE)
    assert documented == list(read_header("calibrator.safetensors"))
    assert os.listdir() == ["calibrator.safetensors"]  # noqa: PTH208 (hidden files count)
