"""One table in four formats, each read back by a reader of its own."""

import csv
import dataclasses
import io
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.paper.tables.build import Tabulated, tabulate
from calibrant_lab.paper.tables.formats import for_terminal, render, significance_csv
from calibrant_lab.sweeps.protocol import rehearse
from calibrant_lab.trials.store import Store
from tests.lab.stores import finish_all, finished, finished_plan, keep_predictions, scores


def outcome(place: int, seed: int) -> dict[str, float]:
    """Rows that differ from each other and from the paper, with some noise."""
    noise = 1e-4 * ((7 * seed + 3 * place) % 5)
    return scores(0.98 - 0.002 * place + noise, 0.02 - 0.003 * place + noise, 0.1, 0.0031 + noise, 0.987, 0.004)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Tabulated:
    """MNIST: all but the last row, and one seed missing in the row before."""
    plan, store = finished_plan("table1", "mnist"), Store(tmp_path_factory.mktemp("runs"))
    for place, row in enumerate(plan.rows[:-1]):
        for trial in row.trials[: 4 if place == 3 else 5]:
            finished(store, trial, test=outcome(place, trial.seed))
    return tabulate(plan, store)


def printed(table: Tabulated, width: int = 80) -> str:
    screen = io.StringIO()
    Console(file=screen, width=width, color_system=None).print(for_terminal(table))
    return screen.getvalue()


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_terminal_shows_the_papers_numbers_under_ours(table: Tabulated) -> None:
    shown = printed(table).splitlines()
    place = next(place for place, line in enumerate(shown) if line.startswith(" NLL "))
    ours, papers = shown[place : place + 2]
    assert re.split(r"\s{2,}|\s(?=\d)", ours.strip())[:3] == ["NLL", "98.02±0.02†", "2.02±0.02†"]
    assert papers.split()[2:] == ["98.8±0.034", "0.91±0.080", "0.31±0.044", "98.7±0.058", "0.43±0.123"]
    assert [k for k, sign in enumerate(ours) if sign == "±"] == [k for k, sign in enumerate(papers) if sign == "±"]
    sb_ece = next(place for place, line in enumerate(shown) if re.match(r" \+ SB-ECE \(4/5\) +9", line))
    assert shown[sb_ece + 1].strip() == "λ=0.2, T=0.0001"
    assert any(re.match(r" \+ ESD \(0/5\) *$", line) for line in shown)


def test_the_terminal_needs_eighty_columns_even_at_its_widest(tmp_path: Path) -> None:
    methods = ["mmce", "sb-ece", "esd", "esd-raw", "weighted-mmce", "margin-label-smoothing"]
    plan = rehearse(paper_sweep("table1", "mnist", "cpu", {"methods": methods}))
    store = finish_all(Store(tmp_path), plan, lambda place, seed: scores(0.5, 0.1 + seed / 50, 0, 0.1, 0.5, 0.1))
    shown = printed(tabulate(plan, store))
    assert "…" not in shown
    assert all(name in shown for name in ("margin smoothing", "+ weighted MMCE", "λ=20", "T=0.0001"))
    assert max(map(len, shown.splitlines())) <= 80


def test_markdown_is_two_tables_and_two_lists(table: Tabulated) -> None:
    html = MarkdownIt("commonmark").enable("table").render(render(table, "markdown"))
    assert html.count("<table>") == html.count("<ul>") == 2
    first, second = (
        [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)]
        for part in html.split("</table>")[:2]
    )
    assert {len(row) for row in first} == {8}
    assert first[1][:3] == ["NLL", "<strong>98.02±0.02†</strong>", "2.02±0.02†"]
    assert first[1][6:] == ["", "5"]
    assert first[2][1] == "<em>98.8±0.034</em>"
    assert {len(row) for row in second} == {6}
    assert any(row[0] == "+ MMCE against NLL" and row[5] == "<strong>better</strong>" for row in second)


def test_latex_is_balanced_escaped_and_has_as_many_cells_as_columns(table: Tabulated) -> None:
    hostile = table.sweep.model_copy(update={"profile": r"50%_a&b\c#{}~^$"})
    text = render(dataclasses.replace(table, sweep=hostile), "latex")
    assert text.isascii()
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular"] * 2
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", "table"] * 2
    assert r"50\%\_a\&b\textbackslash{}c\#\{\}\textasciitilde{}\textasciicircum{}\$" in text
    for block, alignment in zip(text.split(r"\toprule")[1:], ("lrrrrrlr", "lrrrrl"), strict=True):
        assert rf"\begin{{tabular}}{{{alignment}}}" in text
        rows = [line for line in block.partition(r"\bottomrule")[0].splitlines() if line.endswith(r"\\")]
        cells = {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows if "multicolumn" not in row}
        assert cells == {len(alignment)}
    plain = re.sub(r"\\[\\%_&#{}$]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert r"\textbf{98.02$\pm$0.02$^{\dagger}$}" in text
    assert r"\emph{98.8$\pm$0.034}" in text
    assert r"$\lambda$=0.2, $\phi$=0.2" in text


def test_csv_has_numbers_only_and_no_formulas(table: Tabulated) -> None:
    rows = read(render(table, "csv"))
    assert [row["row"] for row in rows] == ["NLL", "NLL, reduced split", "NLL + MMCE", "NLL + SB-ECE", "NLL + ESD"]
    first, last = rows[0], rows[-1]
    assert float(first["accuracy_percent_mean"]) == pytest.approx(98.02)
    assert float(first["accuracy_percent_std"]) == pytest.approx(0.015811)
    assert (first["accuracy_percent_paper_mean"], first["accuracy_percent_paper_std"]) == ("98.8", "0.034")
    assert (first["seeds"], first["planned_seeds"], rows[3]["seeds"]) == ("5", "5", "4")
    assert (rows[2]["weight"], rows[2]["bandwidth"], rows[2]["softness"]) == ("0.2", "0.2", "")
    assert (last["problem"], last["ece_percent_mean"], last["ece_percent_paper_mean"]) == ("not run here", "", "0.3")
    assert "±" not in render(table, "csv")
    assert {tuple(row[key] for key in ("table", "recipe", "model", "epochs")) for row in rows} == {
        ("table1", "mnist", "lenet5", "50")
    }
    assert [row["within_tolerance"] for row in rows] == ["", "", "true", "true", "true"]


def test_csv_rows_of_ensembles_have_what_was_chosen_and_claim_no_accuracy(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "digits", "quick"), Store(tmp_path)
    for trial in (trial for row in plan.rows[1:4] for trial in row.trials):
        done = finished(store, trial, test=outcome(2, trial.seed))
        keep_predictions(done, trial.seed)
        keep_predictions(done, 10 + trial.seed, suffix="-dropout")
    rows = read(render(tabulate(plan, store), "csv"))
    for kind in ("ensemble", "dropout"):
        found = [row for row in rows if row["kind"] == kind]
        assert [row["row"] for row in found] == ["NLL, reduced split", "NLL + MMCE", "NLL + SB-ECE"]
        chosen = [tuple(row[key] for key in ("weight", "bandwidth", "softness", "within_tolerance")) for row in found]
        assert chosen == [("", "", "", ""), ("0.6", "0.4", "", ""), ("0.6", "", "0.001", "")]


def test_the_comparisons_have_a_csv_of_their_own(table: Tabulated) -> None:
    rows = read(significance_csv(table))
    assert len(rows) == len(table.comparisons) == 18
    one = next(row for row in rows if (row["row"], row["measure"]) == ("NLL + MMCE", "ece"))
    assert (one["against"], one["verdict"], one["seeds"]) == ("NLL", "better", "5")
    assert float(one["low"]) < float(one["difference"]) < float(one["high"]) < 0
    assert float(one["p_t"]) <= float(one["p_t_holm"]) < 0.05


def test_an_empty_table_can_be_rendered_in_every_format(tmp_path: Path) -> None:
    table = tabulate(finished_plan("table3", "cifar100"), Store(tmp_path / "none"))
    texts = [printed(table), *(render(table, name) for name in ("markdown", "latex", "csv"))]
    assert [text.count("not run here") for text in texts] == [7] * 4
    assert significance_csv(table).strip() == ""
    with pytest.raises(ValueError, match="html"):
        render(table, "html")  # type: ignore[arg-type]
