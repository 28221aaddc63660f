"""The guides: prompts and commands give the output shown, numbers are those of their sources, methods have pages."""

import doctest
import json
import re
import shlex
import warnings
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from benchmarks import trust_table

import calibrant as cal
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.saved import read_header
from tests.shell import run

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {path: path.read_text() for path in sorted(DOCS.rglob("*.md")) if DOCS / "_build" not in path.parents}
OBJECTIVES = [f"calibrant.{name}" for name in cal.__all__ if name.endswith("Loss")]
FLAGS = re.DOTALL | re.MULTILINE
CALIBRATORS = [f"calibrant.posthoc.{kind.__name__}" for kind in METHODS.values()]

TRUST = json.loads(trust_table.KEPT.read_text())["runs"]
MNIST = {
    "NLL": "rows-nll",
    "NLL, reduced split": "rows-reduced",
    "+ MMCE, λ 0.6, φ 0.8": "rows-mmce",
    "+ SB-ECE, λ 1, T 0.01": "rows-sb-ece",
    "+ ESD, λ 8": "rows-esd",
    "temperature in the loop": "loop",
}


def by_seed(setting: str, method: str, score: str) -> list[float]:
    """Scores of a row of the trust table."""
    runs = [run for run in TRUST if (run["setting"], run["method"]) == (setting, method)]
    return [run[score] for run in sorted(runs, key=lambda run: run["seed"])]


def apart(setting: str, method: str) -> str:
    """Mean difference from the log loss of CalibratedLoss, and its standard error."""
    pairs = zip(by_seed(setting, method, "log_loss_after"), by_seed(setting, "loop", "log_loss"), strict=True)
    found = [one - other for one, other in pairs]
    return f"{abs(mean(found)):.3f} ± {stdev(found) / len(found) ** 0.5:.3f}"


def settings_below_nll(method: str, score: str) -> int:
    """In how many settings a row has a lower mean than the NLL."""
    settings = {run["setting"] for run in TRUST if run["method"] == method}
    return sum(mean(by_seed(name, method, score)) < mean(by_seed(name, "nll", score)) for name in settings)


def row_of_trials(name: str, file: str) -> str:
    """A row of the table of networks on MNIST that were trained again."""
    trials = json.loads((DOCS.parent / f"results/mnist/trials-{file}.json").read_text())["trials"]
    scores = [
        [100 * trial["test"][score] for trial in trials]
        for score in ("accuracy", "ece", "ece+temperature", "ece+vector")
    ]
    return " | ".join([f"| {name}", *(f"{mean(one):.2f} ± {stdev(one):.2f}" for one in scores)])


# Numbers that a page states in its own words, as its source has them; all others are included from results/.
NUMBERS = [
    *(("results/mnist", row_of_trials(name, file)) for name, file in MNIST.items()),
    ("results/trust", f"synthetic data (by {apart('made', 'nll-stopped')})"),
    ("results/trust", f"SICK (by {apart('sick', 'nll-stopped')})"),
    *(
        (f"methods/{page}", f"the NLL on the same data in {settings_below_nll(method, 'ece')} of 6")
        for page, method in (("bsce_gra", "bsce-gra"), ("dual_focal", "dual-focal"))
    ),
    *(
        (f"methods/{page}", f"above that of the NLL in {6 - settings_below_nll(method, 'log_loss_after')} of 6")
        for page, method in (("bsce_gra", "bsce-gra"), ("dual_focal", "dual-focal"))
    ),
]


# Sections of the shipping guide, which run one by one after its first; and packages that some need.
SHIPPING = dict(re.findall(r"^##? ([^\n]*)\n(.*?)(?=^## |\Z)", PAGES[DOCS / "shipping.md"], FLAGS))
NEEDED = {
    "Hugging Face": "transformers",
    "Lightning": "lightning",
    "ONNX": "onnxruntime",
    "MLflow and Weights & Biases": "mlflow",
}


def blocks(text: str, language: str) -> list[str]:
    """Blocks of code of a text in one language."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, FLAGS)
    return [block for name, block in found if name == language]


def first_program(guide: Path) -> str:
    """The block that makes what the others use."""
    return next((block for block in blocks(PAGES[guide], "python") if block.startswith("import ")), "")


def words(text: str) -> str:
    """The text with a # for every number, which may differ between machines in its last digit."""
    return " ".join(re.sub(r"[\d.,]*\d", "#", text).split())


@pytest.mark.slow_after(10)
@pytest.mark.parametrize(
    "guide",
    [path for path, text in PAGES.items() if ">>> " in text],
    ids=lambda path: path.relative_to(DOCS).with_suffix("").as_posix(),
)
def test_prompts_in_a_guide_give_what_it_says(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = blocks(PAGES[guide], "python")
    prompts = "\n".join(block for block in python if ">>> " in block)
    assert prompts.count(">>> ") == PAGES[guide].count(">>> "), "a prompt outside a python block"
    names: dict[str, Any] = {}
    exec(first_program(guide), names)  # noqa: S102 (our own guide)
    test = doctest.DocTestParser().get_doctest(prompts, names, guide.name, str(guide), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("guide", sorted(DOCS.glob("audit_*.md")), ids=lambda path: path.stem)
def test_commands_in_a_guide_print_what_it_says(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(first_program(guide), {})  # noqa: S102 (our own guide)
    for block in blocks(PAGES[guide], "console"):
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = shown.partition("\n")
            assert run(*shlex.split(command)[1:]) == 0
            printed, place = words(capsys.readouterr().out), 0
            for part in map(words, output.split("…")):
                assert part in printed[place:]
                place = printed.index(part, place) + len(part)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first program of the shipping guide defines; files are written to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    names: dict[str, Any] = {"__name__": "guide"}
    exec("\n".join([*blocks(SHIPPING["Deploy a calibrator"], "python"), "import torch"]), names)  # noqa: S102 (our own guide)
    return names


@pytest.mark.parametrize(
    "section",
    # posthoc/test_exported.py has a quick test of ONNX.
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "ONNX"))
        for name, text in SHIPPING.items()
        if "```python" in text
    ],
)
def test_a_section_about_shipping_runs_as_it_stands(section: str, shipped: dict[str, Any]) -> None:
    if section in NEEDED and find_spec(NEEDED[section]) is None:
        pytest.skip(f"{NEEDED[section]} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of other packages about each other
        for program in blocks(SHIPPING[section], "python"):
            exec(program, shipped)  # noqa: S102 (our own guide)


def test_the_guide_documents_every_key_of_the_header(shipped: dict[str, Any]) -> None:
    cal.posthoc.save(shipped["calibrator"], "calibrator.safetensors")
    documented = re.findall(r"^\| `(\w+)` \|", SHIPPING["Files"], flags=re.MULTILINE)
    assert documented == list(read_header("calibrator.safetensors"))
    assert [path.name for path in Path().iterdir()] == ["calibrator.safetensors"]


def test_the_first_lines_of_the_readme_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = blocks((DOCS.parent / "README.md").read_text(), "python")
    exec(first, {})  # noqa: S102 (our own readme)
    assert "ECE" in capsys.readouterr().out


def test_the_table_of_the_readme_is_that_of_the_arena() -> None:
    arena = json.loads((DOCS.parent / "results/arena/arena.json").read_text())
    groups = ["networks, 3 to 10 classes", "networks, 100 classes", "networks, binary"]
    groups += ["tabular, multi-class", "tabular, binary"]
    rows = []
    for group in groups:
        cases = [place for place, case in enumerate(arena["cases"]) if case[1] == group]
        means = defaultdict[str, float](lambda: float("inf"))
        for method, result in arena["results"].items():
            losses = [result["log_loss"][place] for place in cases]
            if None not in losses:
                means[method] = float(np.mean(losses))
        peer = min(loss for method, loss in means.items() if not method.startswith(("calibrant", "nothing")))
        found = means["nothing"], means["calibrant: temperature"], peer, means["calibrant: auto"]
        lowest = min(found)
        shown = (f"**{value:.4f}**" if value == lowest else f"{value:.4f}" for value in found)
        rows.append(" | ".join([str(len(cases)), *shown]))
    text = (DOCS.parent / "README.md").read_text()
    assert re.findall(r"^\| (?:networks|tables), .*?\| (.*?) \|$", text, flags=re.MULTILINE) == rows


def test_the_comparison_on_the_trust_page_is_that_of_the_runs() -> None:
    assert trust_table.START + trust_table.comparison(TRUST) + trust_table.END in trust_table.PAGE.read_text()


def test_numbers_in_the_words_of_a_page_are_those_of_their_source() -> None:
    wrong = [(page, text) for page, text in NUMBERS if text not in " ".join(PAGES[DOCS / f"{page}.md"].split())]
    assert not wrong


def test_every_method_has_one_page_of_its_own() -> None:
    texts = [text for path, text in PAGES.items() if path.parent.name == "methods"]
    names = [*OBJECTIVES, *CALIBRATORS, "calibrant.posthoc.ConformalClassifier"]
    assert [name for name in names if sum(f"{{class}}`{name}`" in text for text in texts) != 1] == []


def test_no_code_is_wider_than_a_page() -> None:
    code = [
        (path.name, block) for path, text in PAGES.items() for block in re.findall(r"^```\w+\n(.*?)^```$", text, FLAGS)
    ]
    assert [(name, line) for name, block in code for line in block.splitlines() if len(line) > 100] == []


def test_tests_that_the_pages_name_exist() -> None:
    tests = "\n".join(path.read_text() + path.stem for path in Path(__file__).parent.rglob("*.py"))
    named = {name for text in PAGES.values() for name in re.findall(r"`(?:tests/[\w/]*)?(test_\w+)(?:\.py)?`", text)}
    assert {name for name in named if not re.search(rf"\b{name}\b", tests)} == set()
