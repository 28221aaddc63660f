"""The page about a store: tables, figures, trials and failures, as stored."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.files import FileError
from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.paper.store_report import render_store
from calibrant_lab.sweeps.run import record, recorded
from calibrant_lab.trials.store import Store, write_result
from tests.lab.stores import begun, failed, filled_store, plan_maker, plausible
from tests.pages import Checker, assert_loads_nothing, assert_references_resolve

HOSTILE = "</pre></details><script>alert(1)</script><img src=https://example.org/x>"
SWEEP = paper_sweep("table1", "digits", "quick")
QUICK = SWEEP.base


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A complete Table 1."""
    return filled_store(tmp_path_factory.mktemp("complete"))


@pytest.fixture(scope="module")
def page(store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a store with two recipes, one of them complete, small batches, failures and hostile texts everywhere."""
    found = Store(shutil.copytree(store.folder, tmp_path_factory.mktemp("hostile") / "runs"))
    record(paper_sweep("table2", "digits", "quick"), found)
    plausible(found, plan_maker("digits", "quick")(found).rows[-1].trials[0].replaced({"batch_size": 64}))
    other = paper_sweep("table1", "snli", "paper", {"settings": {"model": HOSTILE}})
    record(other, found)
    result = plausible(found, other.base)
    write_result(found.trial(other.base).folder, replace(result, environment={HOSTILE: HOSTILE}))
    for seed in (7, 8):
        failed(found, other.base.replaced({"seed": seed}), f'Traceback:\n  File "x"\nValueError: {HOSTILE}')
    return render_store(found)


def texts_of(store: Store) -> list[str]:
    return Checker(render_store(store)).texts


def test_hostile_texts_stay_texts_and_nothing_is_loaded(page: str) -> None:
    assert_loads_nothing(page)
    assert_references_resolve(page)
    assert HOSTILE not in page
    assert any(HOSTILE in text for text in Checker(page).texts)
    assert "default-src 'none'" in page


def test_the_page_has_tables_figures_trials_and_failures(page: str) -> None:
    texts = Checker(page).texts
    assert {"digits (lenet5), 12 epochs", "Cost", "Failures", "Environments", "Cost of all recipes"} <= set(texts)
    # All five of digits; of the one text network its curves, cost and cumulative figure.
    assert [text[7] for text in texts if text.startswith("Figure ")] == ["1", "2", "3", "4", "5", "1", "3", "4"]
    assert sum("Figure 2 needs" in text or "Figure 5 needs" in text for text in texts) == 2
    tables = re.findall(r"Table \d on \w+", " ".join(text for text in texts if text.startswith("The paper's Table")))
    assert tables == ["Table 1 on digits", "Table 2 on digits", "Table 1 on snli"]
    assert sum("(2 trials)" in text for text in texts) == 1  # one traceback for both failures


def test_the_same_trials_give_the_same_page(store: Store) -> None:
    assert render_store(store) == render_store(Store(store.folder))


def test_a_page_of_failures_and_damaged_trials_lists_them(tmp_path: Path) -> None:
    failed(Store(tmp_path), QUICK, "ValueError: no such data")
    damaged = Store(tmp_path).trial(QUICK.replaced({"seed": 1})).folder
    damaged.mkdir()
    (damaged / "config.json").write_text("{")
    texts = {"ValueError: no such data (1 trial)", "1 failed, 1 damaged", "failed", "damaged"}
    assert texts <= set(texts_of(Store(tmp_path)))


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no trials"):
        render_store(Store(tmp_path))
    with pytest.raises(FileError, match="folder"):
        render_store(Store(tmp_path / "none"))


def test_tables_are_those_of_the_recorded_sweeps(tmp_path: Path) -> None:
    store = filled_store(tmp_path, search_seeds=2, methods=["esd"])
    [sweep] = recorded(store)
    # The same trials, with more of the search asked for.
    wider = {"name": "wider", "methods": ["esd"], "settings": sweep.settings}
    record(paper_sweep("table1", "digits", "paper", wider), store)
    texts = texts_of(store)
    assert any("Table 1 on digits" in text and "2 seeds per candidate" in text for text in texts)
    assert {"wider on digits (lenet5), profile paper", f"sweeps/{sweep.record_name}", "search not ended"} <= set(texts)
    shutil.rmtree(tmp_path / "sweeps")
    assert f"{len(store.trials())} trials without a sweep" in texts_of(store)


def test_sweeps_and_trials_of_an_unknown_recipe_are_no_failures(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (0, 1, 2):
        path = begun(store, QUICK.replaced({"seed": seed})).folder / "config.json"
        path.write_text(path.read_text().replace('"digits"', '"/gone/mine.py:mine"'))
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.toml").write_text('recipe = "/gone/mine.py:mine"\n')
    texts = texts_of(store)
    assert any(text.startswith("3 trials of 1 sweep") for text in texts)
    assert "Unknown to this installation" in texts
    assert "Failures" not in texts
    [reason] = [text for text in texts if text.endswith("(3 trials)")]
    assert "/gone/mine.py:mine" in reason
    record(SWEEP, store)
    assert recorded(store) == [SWEEP]


def test_a_metric_that_raises_leaves_the_rest_of_the_page(store: Store, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def bad(predictions):\n    raise KeyError('absent')\n")
    other = Store(shutil.copytree(store.folder, tmp_path / "runs"))
    record(SWEEP.model_copy(update={"columns": ("accuracy", f"{tmp_path / 'own.py'}:bad")}), other)
    assert "own.py, line 2" in render_store(other)
