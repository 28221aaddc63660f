"""The arena scores as our metrics do, ranks as loops do, resumes its runs, and reads the files of CalArena."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import arena, arena_data, arena_fresh, arena_fresh_networks, arena_fresh_tables, arena_runs
from benchmarks.arena_data import GROUPS, NETWORKS, Case, Part, cases
from benchmarks.arena_methods import NOTHING, Method, methods, source_version
from benchmarks.arena_runs import FLOOR, Array, Results, attempt, ranks, run, score, wins
from benchmarks.arena_table import standings

from calibrant import metrics
from calibrant.posthoc.registry import METHODS


def losses(seed: int, rows: int = 6, columns: int = 5) -> Array:
    """Log losses with ties: some equal, some within the tolerance, some just outside."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 4, size=(rows, columns)) / 10
    return np.asarray(values + generator.choice([0.0, 4e-7, 3e-6], size=values.shape))


@pytest.mark.parametrize("seed", range(5))
def test_win_rates_and_ranks_equal_loops_with_shared_ties(seed: int) -> None:
    values = losses(seed)
    for case, row in enumerate(values):
        for k, mine in enumerate(row):
            better = sum(other < mine - 1e-6 for other in row)
            tied = sum(abs(other - mine) <= 1e-6 for other in row) - 1
            assert ranks(values)[case, k] == pytest.approx(1 + better + tied / 2)
            assert wins(values)[case, k] == pytest.approx((len(row) - 1 - better - tied / 2) / (len(row) - 1))
    assert np.allclose(wins(values).mean(axis=1), 0.5)


def test_the_floor_is_the_same_for_zero_and_below_and_infinity_is_reported_before_it() -> None:
    p = arena_runs.floored(np.array([[0.0, 1.0], [1e-300, 1.0], [0.25, 0.75]]))
    assert (p[0] == p[1]).all()
    assert p[0, 0] == FLOOR
    assert p[2].tolist() == [0.25, 0.75]
    assert score(np.array([[0.0, 1.0]]), np.array([0]))["log_loss"] == pytest.approx(-math.log(FLOOR))
    assert [score(np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([y, 1]))["infinite"] for y in (0, 1)] == [1, 0]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_scores_equal_our_metrics(classes: int) -> None:
    generator = np.random.default_rng(classes)
    p = generator.dirichlet(np.full(classes, 0.3), 200)
    y = generator.integers(classes, size=200)
    found = score(p, y)
    ours = metrics.evaluate(probabilities=p, target=y).to_dict()["scores"]
    assert found["log_loss"] == pytest.approx(ours["log_loss"]["value"])
    assert found["brier"] == pytest.approx(ours["brier"]["value"])
    assert found["ece"] == pytest.approx(metrics.ece(probabilities=p, target=y, convention="guo"))


def test_a_confidence_on_the_edge_of_a_bin_belongs_below() -> None:
    assert arena_runs.ece(np.array([0.2, 0.21]), np.array([True, False])) == pytest.approx((0.8 + 0.21) / 2)


def test_splits_of_a_pair_are_averaged_first_and_bootstrap_draws_whole_blocks() -> None:
    means, names = arena_runs.by_pair(np.array([[1.0], [3.0], [10.0]]), ["a", "a", "b"])
    assert (names, means.tolist()) == (["a", "b"], [[2.0], [10.0]])

    values = np.array([[0.0], [0.0], [1.0]])
    found = arena_runs.bootstrap(values, ["a", "a", "b"])[0]
    assert found.mean == pytest.approx(1 / 3)
    # Both draws from one block give 0 or 1, a quarter of the time each.
    assert (found.low, found.high) == (0.0, 1.0)
    assert math.isnan(arena_runs.bootstrap(values, ["a", "a", "a"])[0].low)


def test_critical_difference_equals_the_published_table() -> None:
    # Demšar (2006): q at 5 % is 2.343 for 3 methods and 3.164 for 10.
    assert arena_runs.critical_difference(3, 14) == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 14)), rel=1e-3)
    assert arena_runs.critical_difference(10, 30) == pytest.approx(3.164 * math.sqrt(10 * 11 / (6 * 30)), rel=1e-3)


def part(seed: int, classes: int, rows: int = 60) -> Part:
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(classes), rows)
    y = np.concatenate((np.arange(classes), generator.integers(classes, size=rows - classes)))
    return Part(p.astype(np.float32), y)


def case(name: str, classes: int = 3) -> Case:
    group = GROUPS[4] if classes == 2 else GROUPS[3]
    return Case(group, name, "model", 0, name, "held-out", lambda: (part(1, classes), part(2, classes)))


class Counter:
    """A method that counts its fits."""

    def __init__(self, fail: bool = False) -> None:
        self.fits = 0
        self.fail = fail

    def __call__(self, p: Array, y: Array) -> object:
        self.fits += len(p) == 60  # fits to warm up have other sizes
        if self.fail:
            raise RuntimeError("no")
        return lambda q: np.full(q.shape, 1 / q.shape[1])


def nothing() -> Method:
    return Method(NOTHING, lambda _p, _y: lambda q: q, "1")


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    counter = Counter()
    uniform = Method("uniform", counter, "1")  # type: ignore[arg-type]
    path = tmp_path / "runs.jsonl"
    run([case("a")], [nothing(), uniform], Results(path))
    with path.open("a") as file:
        file.write('{"case": "b/mod')  # killed while writing
    found = run([case("a"), case("b")], [nothing(), uniform], Results(path))
    assert counter.fits == 2
    assert {(result["case"], result["method"]) for result in found} == {
        (f"{name}/model/0", method) for name in "ab" for method in (NOTHING, "uniform")
    }
    run([case("a"), case("b")], [nothing(), uniform], Results(path))
    assert counter.fits == 2


def test_another_version_or_other_data_is_run_again(tmp_path: Path) -> None:
    assert source_version("calibrant.posthoc.scaling") != source_version("calibrant.posthoc.binning")
    counter = Counter()
    path = tmp_path / "runs.jsonl"
    run([case("a")], [Method("uniform", counter, "1")], Results(path))  # type: ignore[arg-type]
    run([case("a")], [Method("uniform", counter, "2")], Results(path))  # type: ignore[arg-type]
    run([case("a", 4)], [Method("uniform", counter, "2")], Results(path))  # type: ignore[arg-type]
    assert counter.fits == 3


def test_a_failed_fit_scores_as_nothing_and_is_counted(tmp_path: Path) -> None:
    def fit(p: Array, _y: Array) -> object:
        if len(p) == 50:
            raise ValueError("bad")
        return lambda q: q * q

    both = [case("a"), Case(GROUPS[3], "b", "model", 0, "b", "held-out", lambda: (part(5, 3, rows=50), part(6, 3)))]
    results = run(both, [nothing(), Method("flaky", fit, "1")], Results(tmp_path / "runs.jsonl"))  # type: ignore[arg-type]
    table = arena_runs.filled(results)
    assert table[both[0].key, "flaky"]["failed"] is None
    assert table[both[1].key, "flaky"]["failed"] == "ValueError: bad"
    assert table[both[1].key, "flaky"]["log_loss"] == table[both[1].key, NOTHING]["log_loss"]
    standing = standings(both, results)[0]
    k = standing.methods.index("flaky")
    assert standing.values["failures"].sum(axis=0)[k] == 1
    assert standing.values["worse"][1, k] == 0


def test_a_method_that_fails_everywhere_is_left_out_and_a_slow_one_fails(tmp_path: Path) -> None:
    failing = Method("failing", Counter(fail=True), "1")  # type: ignore[arg-type]
    results = run([case("a")], [nothing(), failing], Results(tmp_path / "runs.jsonl"))
    standing = standings([case("a")], results)[0]
    assert (standing.methods, list(standing.left_out)) == ([NOTHING], ["failing"])

    def fit(_p: Array, _y: Array) -> object:
        while True:
            pass

    result = attempt(Method("slow", fit, "1"), part(1, 2), part(2, 2), limit=0.05)  # type: ignore[arg-type]
    assert result["failed"].startswith("TimeoutError")


@pytest.mark.slow
def test_every_method_of_ours_takes_part_under_its_name() -> None:
    names = [method.name for method in methods()]
    assert names[0] == NOTHING
    assert {f"calibrant: {name}" for name in METHODS} <= set(names)
    assert len(set(names)) == len(names)


def save(folder: Path, name: str, classes: int, splits: int = 1) -> None:
    arrays: dict[str, Any] = {}
    for split in range(splits):
        (p, y), (q, z) = part(split, classes), part(10 + split, classes)
        arrays |= {f"forest-{split}/cal": p, f"forest-{split}/cal_y": y}
        arrays |= {f"forest-{split}/test": q, f"forest-{split}/test_y": z}
    np.savez(folder / f"{name}.npz", **arrays)


def test_a_folder_of_predictions_is_read_and_split_by_data_set(tmp_path: Path) -> None:
    save(tmp_path, "iris", 3, splits=2)
    save(tmp_path, "mine", 2)
    found = cases([tmp_path])
    assert [(c.group, c.key, c.part) for c in found] == [
        (GROUPS[3], "iris/forest/0", "development"),
        (GROUPS[3], "iris/forest/1", "development"),
        (GROUPS[4], "mine/forest/0", "held-out"),
    ]
    assert [c.data for c in cases([tmp_path], ["held-out"])] == ["mine"]
    assert (found[0].read()[1].p == part(10, 3).p).all()


def test_networks_are_cut_into_halves_and_binary_tasks_derived(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    file = NETWORKS["resnet20"].file
    logits = {name: generator.normal(size=(40, 10)) for name in ("resnet20", "resnet32", "resnet44", "resnet56")}
    labels = np.arange(40) % 10
    np.savez(tmp_path / file, labels=labels, **logits)  # type: ignore[arg-type]
    found = {c.key: c for c in cases([tmp_path])}
    first, second = found["CIFAR-10/resnet20/0"].read(), found["CIFAR-10/resnet20/1"].read()
    assert (first[0].p == second[1].p).all()
    assert sorted([*first[0].y, *first[1].y]) == sorted(labels)
    animals = found["CIFAR-10 animal or machine/resnet20/0"].read()[0]
    assert animals.y.tolist() == [int(2 <= label <= 7) for label in first[0].y]
    assert animals.p[:, 1] == pytest.approx(first[0].p[:, 2:8].sum(axis=1))
    cats = found["CIFAR-10 cat or dog/resnet20/0"].read()[0]
    assert len(cats.y) == np.isin(first[0].y, [3, 5]).sum()
    joint = found["CIFAR-10 two images/resnet20/0"].read()[0]
    assert joint.y[1] == 10 * first[0].y[1] + first[0].y[0]
    assert joint.p[1, joint.y[1]] == pytest.approx(first[0].p[1, first[0].y[1]] * first[0].p[0, first[0].y[0]])
    assert "CIFAR-10 two images/resnet32/0" not in found


def test_a_folder_named_networks_has_tasks_of_networks_by_source(tmp_path: Path) -> None:
    folder = tmp_path / "networks"
    folder.mkdir()
    for name, classes in (("mnist-parity", 2), ("sick-nli", 3)):
        save(folder, name, classes)
    assert [(c.group, c.data, c.block, c.part) for c in cases([folder])] == [
        (GROUPS[2], "mnist-parity", "mnist", "development"),
        (GROUPS[0], "sick-nli", "sick", "seen"),
    ]


def test_held_out_tables_and_sources_are_new() -> None:
    tables = arena_fresh_tables
    generations = (tables.FIRST, tables.SECOND, tables.THIRD, tables.FOURTH)
    names = [name for one in generations for name in one]
    assert len(names) == len(set(names))
    binary = set(tables.BINARY)
    for some in (binary, set(tables.FIRST) - binary):
        ordered = sorted(some, key=str.lower)
        assert [name for name in ordered if name in arena_data.DEVELOPMENT_SETS] == ordered[1::2]
    assert not {*arena_data.DEVELOPMENT_SETS, *arena_data.SEEN_SETS} & {name for one in generations[1:] for name in one}
    later = arena_fresh_networks.SECOND | arena_fresh_networks.THIRD
    sources = {arena_fresh_networks.source_of(task) for task in later}
    assert not sources & {*arena_data.DEVELOPMENT_NETWORKS, *arena_data.SEEN_NETWORKS}
    assert set(NETWORKS) <= {*arena_data.DEVELOPMENT_NETWORKS, *arena_data.SEEN_NETWORKS}
    assert not {*arena_data.DEVELOPMENT_NETWORKS, *arena_data.DEVELOPMENT_SETS} & {
        *arena_data.SEEN_NETWORKS,
        *arena_data.SEEN_SETS,
    }


def test_calarena_files_are_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "cv-binary.h5", "w") as file:
        file.create_group("c10/lenet5").create_dataset("probas_cal", data=np.zeros(3))
    with pytest.raises(ValueError, match=r"c10/lenet5.*labels_cal"):
        cases([tmp_path / "cv-binary.h5"])
    (tmp_path / "cv-binary.h5").unlink()
    binary, multi = (part(1, 2), part(2, 2)), (part(3, 4), part(4, 4))
    for name, (calibration, test), column in (("tabrepo-binary", binary, 1), ("cv-multiclass", multi, None)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            group = file.create_group("2dplanes/CatBoost")
            for end, (p, y) in (("cal", calibration), ("test", test)):
                values = p if column is None else p[:, column]
                group.create_dataset(f"probas_{end}", data=values.astype(np.float32), compression="gzip")
                group.create_dataset(f"labels_{end}", data=y.astype(np.int32), compression="gzip")
    found = cases([tmp_path])
    assert [(c.group, c.key, c.block) for c in found] == [
        (GROUPS[0], "cv-multiclass:2dplanes/CatBoost/0", "CatBoost"),
        (GROUPS[4], "tabrepo-binary:2dplanes/CatBoost/0", "2dplanes"),
    ]
    for each, (calibration, test) in zip(found, (multi, binary), strict=True):
        read = each.read()
        assert read[0].p == pytest.approx(calibration.p, abs=1e-6)
        assert (read[0].y == calibration.y).all()
        assert read[1].p == pytest.approx(test.p, abs=1e-6)
        assert (read[1].y == test.y).all()


@pytest.mark.slow
def test_the_command_writes_table_figure_and_json_and_resumes(tmp_path: Path) -> None:
    save(tmp_path, "iris", 3)
    save(tmp_path, "mine", 3)
    save(tmp_path, "ours", 2)
    options = ["--data", str(tmp_path), "--methods", "calibrant: temperature", "calibrant: vector"]
    options += ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs.jsonl")]
    arena.main(options)
    text = (tmp_path / "out" / "arena.md").read_text(encoding="utf-8")
    assert "## Held-out pairs" in text
    assert "## Development pairs" in text
    assert "| tabular, multi-class | mine | - | iris |" in text
    assert (tmp_path / "out" / "arena.svg").read_text(encoding="utf-8").startswith("<?xml")
    document = json.loads((tmp_path / "out" / "arena.json").read_text(encoding="utf-8"))
    assert [name for name, *_ in document["cases"]] == ["iris/forest/0", "mine/forest/0", "ours/forest/0"]
    assert len(document["results"][NOTHING]["log_loss"]) == 3
    before = (tmp_path / "runs.jsonl").read_text(encoding="utf-8")
    arena.main(["table", *options])
    assert (tmp_path / "runs.jsonl").read_text(encoding="utf-8") == before
    assert (tmp_path / "out" / "arena.md").read_text(encoding="utf-8") == text


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for p in ([[0.5, 0.5]], [[np.nan, 1.0], [0.5, 0.5]], [[-0.5, 1.5], [0.5, 0.5]]):
        with pytest.raises(ValueError, match="probabilities"):
            score(np.array(p), np.array([0, 1]))
    with pytest.raises(FileNotFoundError, match="no predictions"):
        cases([tmp_path])
    arena_fresh.main([str(tmp_path), "--data", str(tmp_path), "--only", "networks/mnist-two"])
    assert "mnist-two is left out: " in capsys.readouterr().err
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="CALIBRANT_DATA"):
        arena.main(["table", "--out", str(tmp_path)])
