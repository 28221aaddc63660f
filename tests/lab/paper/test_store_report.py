import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.files import FileError
from calibrant_lab.paper.store_report import render_store, write_store_report
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.protocol import PROFILES, with_profile
from calibrant_lab.trials.store import Store, write_result
from tests.lab.filled_stores import filled_store, plan_maker, write_failure, write_trial
from tests.report.test_html import Checker

HOSTILE = "</pre></details><script>alert(1)</script><img src=https://example.org/x>"
QUICK = with_profile(RECIPES["digits"], PROFILES["quick"])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a store with two recipes, one of them complete, a small batch, a failure and hostile texts all over."""
    folder = tmp_path_factory.mktemp("runs")
    store = filled_store(folder)
    write_trial(store, plan_maker(RECIPES["digits"], "quick")(store).rows[-1].trials[0].replaced({"batch_size": 64}))
    text = RECIPES["snli"].replaced({"model": HOSTILE})
    result = write_trial(store, text)
    write_result(store.trial(text).folder, replace(result, environment={HOSTILE: HOSTILE}))
    for seed in (7, 8):
        write_failure(store, text.replaced({"seed": seed}), f'Traceback:\n  File "x"\nValueError: {HOSTILE}')
    write_store_report(folder / "page.html", store)
    return (folder / "page.html").read_text(encoding="utf-8")


def test_hostile_texts_stay_texts_and_nothing_is_loaded(page: str) -> None:
    found = Checker(page)
    assert page.startswith("<!DOCTYPE html>")
    assert HOSTILE not in page
    assert any(HOSTILE in text for text in found.texts)
    assert {tag for tag, _ in found.tags} & {"script", "img", "iframe", "object", "image"} == set()
    assert found.values("src") == []
    assert all(link.startswith(("#", "data:")) for link in found.values("href"))
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert "default-src 'none'" in page


def test_ids_are_unique_and_links_have_their_ends(page: str) -> None:
    found = Checker(page)
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in found.values("href") if link.startswith("#")} <= set(ids)


def test_the_page_has_tables_figures_trials_and_failures(page: str) -> None:
    found = Checker(page)
    assert "Experiments on digits and snli" in found.texts
    assert {"digits: lenet5, 12 epochs", "What failed", "Where they ran", "Cost of all recipes"} <= set(found.texts)
    headings = [text for text in found.texts if text.startswith("Figure ")]
    # All five of digits; of the one text network its curves, cost and cumulative figure.
    assert [heading[7] for heading in headings] == ["1", "2", "3", "4", "5", "1", "3", "4"]
    assert sum("Figure 2 needs" in text or "Figure 5 needs" in text for text in found.texts) == 2
    tables = [text for text in found.texts if re.match(r"The paper's Table \d on ", text)]
    assert [table[12:29] for table in tables] == ["Table 1 on digits", "Table 2 on digits", "Table 1 on snli ("]
    assert sum("(2 trials)" in text for text in found.texts) == 1  # one traceback for both failures


def test_the_table_has_the_means_of_the_stored_results(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    eces = [
        100 * json.loads((path.parent / "result.json").read_text())["outcome"]["ece"]
        for path in tmp_path.glob("digits-nll-*/config.json")
        if not json.loads(path.read_text())["reduced_split"]
    ]
    assert f"{statistics.fmean(eces):.2f}±{statistics.stdev(eces):.2f}" in render_store(store)


def test_the_same_trials_give_the_same_page(tmp_path: Path) -> None:
    write_trial(Store(tmp_path), QUICK)
    assert render_store(Store(tmp_path)) == render_store(Store(tmp_path))


def test_a_page_of_one_trial_reads_well(tmp_path: Path) -> None:
    write_trial(Store(tmp_path), QUICK)
    found = Checker(render_store(Store(tmp_path)))
    assert f"{tmp_path.name}: 1 trial" in found.texts
    assert any(text.startswith("Not shown: Figure 2 needs the search over φ") for text in found.texts)
    assert "Cost of all recipes" not in found.texts
    assert "What failed" not in found.texts


def test_a_page_of_failures_and_damaged_trials_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_failure(store, QUICK, "ValueError: no such data")
    damaged = store.trial(QUICK.replaced({"seed": 1})).folder
    damaged.mkdir()
    (damaged / "config.json").write_text("{")
    found = Checker(render_store(store))
    assert "ValueError: no such data (1 trial)" in found.texts
    assert "1 failed, 1 damaged" in found.texts
    assert {"failed", "damaged"} <= set(found.texts)


def test_a_store_without_predictions_has_its_tables_all_the_same(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    for path in tmp_path.glob("*/*.npz"):
        path.unlink()
    texts = Checker(render_store(store)).texts
    assert any((text.startswith("Not shown:") and "test.npz" in text) or "validation.npz" in text for text in texts)
    assert any(text.startswith("The paper's Table 1 on digits") for text in texts)


def test_no_page_is_made_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no trials: give the --runs"):
        write_store_report(tmp_path / "page.html", Store(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileError, match="is not a folder"):
        render_store(Store(tmp_path / "none"))
