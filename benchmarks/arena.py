"""The arena: our post-hoc methods against those of probmetrics, netcal, scikit-learn and others, by the same scores.

    python -m benchmarks.arena [--data FOLDER ...] [--methods NAME ...] [--groups NAME ...]
                               [--pairs development|seen|held-out ...] [--out results/arena] [--runs FILE]
    python -m benchmarks.arena table      # tables and figure from results on file; runs nothing
    python -m benchmarks.arena speed      # times of ours against its peers, writes OUT/speed.md

``--data`` takes folders of ``.npz`` files and ``.h5`` files of CalArena (`benchmarks/arena_data.py` has the layouts).
By default, these are ``arena`` and ``logits`` in the folder that CALIBRANT_DATA names ("Data sets" in CONTRIBUTING.md).
Every result is kept in the file of ``--runs`` and not computed again; an interrupted command goes on where it was.
``--methods`` and ``--groups`` are parts of names: ``calibrant`` or ``temperature``, ``networks`` or ``binary``. The
dependency group ``peers`` has what is compared.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import arena_speed
from benchmarks.arena_data import GROUPS, Case, cases
from benchmarks.arena_methods import NOTHING, Method, absent, methods
from benchmarks.arena_runs import LIMIT, Result, Results, digest, run
from benchmarks.arena_table import best_against_peers, detail, draw, standings, summary, twins, write_json
from benchmarks.measure import machine
from benchmarks.tables import RESULTS, markdown

# In the order of the sections; the first that has pairs has every number and the figure.
PARTS = ["held-out", "seen", "development"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the arena, or one of its parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip # noqa: E501
    parser.add_argument("what", nargs="?", choices=["run", "table", "speed"], default="run")
    parser.add_argument("--data", nargs="+", type=Path, default=_data())
    parser.add_argument("--methods", nargs="+", default=[], help="parts of names; all by default")
    parser.add_argument("--groups", nargs="+", default=[], help="parts of names of groups; all by default")
    parser.add_argument("--pairs", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=RESULTS / "arena")
    parser.add_argument("--runs", type=Path, default=RESULTS.parent / "runs" / "arena.jsonl")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [m for m in methods() if m.name == NOTHING or _named(m.name, options.methods)]
    mine = [case for case in cases(options.data, options.pairs) if _named(case.group, options.groups)]
    if options.what == "speed":
        arena_speed.measure(mine, chosen, options.out / "speed.md")
        return
    results = Results(options.runs)
    found = run(mine, chosen, results) if options.what == "run" else on_file(mine, chosen, results)
    if not any(result["method"] == NOTHING for result in found):
        sys.exit(f"{options.runs} has no results of these pairs: run the arena first")
    publish(mine, found, options.out)


def _data() -> list[Path]:
    folder = os.environ.get("CALIBRANT_DATA")
    return [Path(folder) / "arena", Path(folder) / "logits"] if folder else []


def _named(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(part.lower() in name.lower() for part in parts)


def on_file(mine: Sequence[Case], chosen: Sequence[Method], results: Results) -> list[Result]:
    """Results of these versions of the methods that are on file."""
    versions = {method.name: method.version for method in chosen}
    data = {case.key: digest(*case.read()) for case in mine}
    return [
        result
        for result in results.kept.values()
        if data.get(result["case"]) == result["data"] and versions.get(result["method"]) == result["version"]
    ]


def publish(mine: Sequence[Case], results: Sequence[Result], out: Path) -> None:
    """Write arena.md, arena.json, and the figure as SVG and PNG."""
    parts = {name: [case for case in mine if case.part == name] for name in PARTS}
    sections = [name for name in PARTS if parts[name]]
    text = [HEAD.format(limit=f"{LIMIT:g}", machine=machine())]
    if absent():
        text.append(f"Not installed, so not compared: {', '.join(absent())}.")
    figure_of = sections[0]
    for name in sections:
        groups = standings(parts[name], results)
        text += [
            f"## {TITLES[name]}", summary(groups),
            "Ours against the peer with the lowest log loss and the one with the highest win rate; the interval is "
            "that of the difference in log loss. Peers are picked on these very pairs, and so is ours if there is no "
            "`auto`:", best_against_peers(groups),
            "The same method by us and by a peer; differences in log loss over pairs, milliseconds to fit and predict:",
            twins(groups),
        ]  # fmt: skip
        if name == figure_of:
            title = f"Post-hoc calibration, {TITLES[name][0].lower()}{TITLES[name][1:]}: mean ranks"
            for suffix in ("svg", "png"):
                draw(groups, title, out / f"arena.{suffix}")
            text.append(f"![Mean rank of every method in each group, {TITLES[name].lower()}](arena.svg)")
            text += [block for group in groups for block in (f"### {group.group}: {name}", detail(group))]
    text += ["## Which pairs are which", split_table(mine)]
    (out / "arena.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    write_json(out / "arena.json", mine, results)
    print(f"{out}/arena.md, arena.json, arena.svg, arena.png")


def split_table(mine: Sequence[Case]) -> str:
    """Data sets, networks, or sources of networks of each group, by what they were used for."""
    rows = []
    for group in GROUPS:
        mine_of = [[case for case in mine if case.group == group and case.part == part] for part in PARTS]
        blocks = [sorted({case.block for case in one}, key=str.lower) for one in mine_of]
        if any(blocks):
            rows.append([group, *(", ".join(names) or "-" for names in blocks)])
    return markdown(["group", *PARTS], rows)


TITLES = {
    "held-out": "Held-out pairs",
    "seen": "Pairs that were held out once and have been seen since",
    "development": "Development pairs",
}
HEAD = """# The arena of post-hoc calibration

Measured by `python -m benchmarks.arena` on {machine}; one thread for every method. A pair is a data set with a
model; pairs weigh equally, and the splits of a pair are averaged first. Every method gets the same float32
probabilities of the calibration part and is scored on the test part by the same code.

- **Win rate**: share of the other methods of the group with a higher log loss. A difference of at most 1e-6 is a tie
  and counts half. **Mean rank**: the same, as a rank.
- **Log loss** after a floor of 1.2e-38 (the smallest normal float32) for every method and renormalising. **Infinite**:
  share of fits with an infinite log loss before that floor.
- **Worse than nothing**: share of fits whose log loss is more than 1e-6 above that of the uncalibrated probabilities.
- **Failed fits** (an error, no probabilities, or longer than {limit} s) score as nothing, and are counted.
- **Brier** is the sum over classes; **ECE** of the top label in 15 bins of equal width. Times are processor time, the
  median over pairs.
- **Intervals**: 95 %, from 2,000 bootstrap draws of whole data sets (tabular) or networks. The critical difference in
  the figure takes pairs as independent, as is usual, and so it is the more optimistic of the two.

`benchmarks/arena_data.py` says which pairs are which. Three kinds:

- **Held-out** pairs were used to choose nothing; the lists of tables and tasks were fixed before a score was computed,
  and none of their sources had been in the arena before. `python -m benchmarks.arena_fresh` makes them: of the second
  generation those of more than two classes, of the third the binary networks, of the fourth the binary tables. Binary
  pairs of the second generation and binary tables of the third led to two changes of `auto`, and are seen pairs since.
- **Seen** pairs were held out for an earlier choice. Their scores have been looked at since, and the present choice
  used a part of them: they are development pairs by now.
- **Development** pairs are for choices.

Limits: networks of one source share rows. The older pairs had been in an earlier comparison, whose table guided the
choice of methods; half of its tables are not on record by name, and may be among the fresh ones. Binary tasks of the
older networks are derived: on CIFAR-10, animal or machine, and cat or dog; on ANLI, entailment or not. Fresh networks
are small, and trained for their task."""


if __name__ == "__main__":
    main()
