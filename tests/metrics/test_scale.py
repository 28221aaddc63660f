"""DuckDB and Spark give the in-memory answer, tests included, whatever the layout, and refuse what is wrong."""

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pa = pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")
import pyarrow.csv  # noqa: E402
import pyarrow.parquet  # noqa: E402

from calibrant import metrics  # noqa: E402
from calibrant.files.formats import Column  # noqa: E402
from calibrant.files.layout import Columns  # noqa: E402
from calibrant.metrics import scale_sql  # noqa: E402
from calibrant.metrics.binned import equal_width_bins  # noqa: E402
from calibrant.metrics.predictions import Predictions  # noqa: E402
from calibrant.metrics.scale import Statistics, statistics_duckdb, statistics_spark  # noqa: E402
from calibrant.metrics.scale_pairs import SqlSource, find_pairs  # noqa: E402
from calibrant.metrics.tests import Judgement  # noqa: E402

Array = npt.NDArray[Any]
Engine = Callable[..., Statistics]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None or importlib.util.find_spec("pyspark") is None:
        pytest.skip("needs Java and pyspark")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.driver.host", "localhost")
    # Small queries by the hundred: compiling each to Java would take longer than running it.
    for option in ("ui.enabled", "ui.showConsoleProgress", "sql.codegen.wholeStage", "sql.adaptive.enabled"):
        builder = builder.config(f"spark.{option}", "false")
    builder = builder.config("spark.sql.codegen.factoryMode", "NO_CODEGEN").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "spark":
        session = request.getfixturevalue("spark")
        return lambda source, **options: statistics_spark(source, session=session, partitions=7, **options)
    monkeypatch.setattr(scale_sql, "ROWS_PER_RANGE", 150)
    return statistics_duckdb


def write(path: Path, **columns: object) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def assert_agrees(found: Statistics, given: Predictions, bins: int = 20) -> None:
    """The scores and bins are those of the samples in memory."""
    expected = metrics.evaluate(given, bins=bins)
    assert found.samples == len(given)
    for name in ("accuracy", "mean_confidence", "gap", "brier_top", "ece", "mce", "ks_error", "esd"):
        assert getattr(found, name) == pytest.approx(expected[name], rel=1e-9, abs=1e-12), name
    for theirs, ours in zip(found.bins, equal_width_bins(given, bins=bins), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-12)


def confidences(shape: str, n: int = 900) -> Array:
    u = np.random.default_rng(3).random(n)
    return {
        "uniform": u,
        "skewed": np.where(u < 0.05, 0.5 + u, 1 - 1e-3 * u**4),
        "rounded to bin edges": np.round(u * 20) / 20,
        "saturated": np.where(u < 0.9, 1.0, u),
        "all equal": np.full(n, 0.7),
        "all zero": np.zeros(n),
    }[shape]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", ["uniform", "skewed", "rounded to bin edges", "saturated", "all equal", "all zero"])
def test_equals_the_definitions(engine: Engine, tmp_path: Path, shape: str, dtype: type) -> None:
    z: Array = confidences(shape).astype(dtype)
    c = (np.random.default_rng(5).random(len(z)) < z - 0.1).astype(np.int8)
    assert_agrees(engine(write(tmp_path / "p.parquet", confidence=z, correct=c)), metrics.predictions(z, c))


@pytest.mark.parametrize("bins", [1, 7, 49, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges_are_compared_in_the_type_of_the_confidence(tmp_path: Path, bins: int, dtype: type) -> None:
    edges: Array = (np.arange(bins + 1) / bins).astype(dtype)
    z = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, dtype(1))]).clip(0, 1)
    c = np.arange(len(z)) % 2
    assert_agrees(
        statistics_duckdb(write(tmp_path / "p.parquet", confidence=z, correct=c), bins=bins),
        metrics.predictions(z, c),
        bins,
    )


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("list", np.float32), ("list", np.float64), ("numbered", np.float32), ("binary", np.float32),
        ("binary", np.float64), ("list of one", np.float64),
    ],
)  # fmt: skip
def test_layouts(engine: Engine, tmp_path: Path, layout: str, logits: bool, dtype: type) -> None:
    rng = np.random.default_rng(11)
    name = "logits" if logits else "probabilities"
    scores = 2 * rng.standard_normal((600, 3))
    # Rows in another order, so that only an order-free sum keeps their ties; and draws between classes.
    scores[300:] = scores[:300, [2, 0, 1]]
    scores[:20] = 0
    if not logits:
        scores = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    scores = scores.astype(dtype)
    target = rng.integers(0, 2 if layout in ("binary", "list of one") else 3, 600)
    if layout in ("list", "list of one"):
        scores = scores if layout == "list" else scores[:, :1]
        columns: dict[str, object] = {name: list(scores)}
    elif layout == "numbered":
        columns = {f"{name}_{k}": scores[:, k] for k in (2, 0, 1)}
    else:
        scores = scores[:, 0].copy()
        columns = {name: scores}
    path = write(tmp_path / "p.parquet", target=target, **columns)
    values: dict[str, Any] = {name: scores}
    assert_agrees(engine(path), metrics.predictions(**values, target=target).pairs)


def test_csv_with_booleans_and_late_fractions(engine: Engine, tmp_path: Path) -> None:
    z = np.array([1.0] * 25_000 + [0.25, 0.5, 0.125])
    rows = [f"{confidence:g},{index % 3 > 0}" for index, confidence in enumerate(z)]
    path = tmp_path / "p.csv"
    path.write_text("\n".join(["confidence,correct", *rows]))
    found = engine(path)
    assert found.samples == 25_003
    assert found.mean_confidence == pytest.approx(z.mean(), rel=1e-12)
    assert found.accuracy == pytest.approx(16_668 / 25_003, rel=1e-12)


def test_many_files_as_a_pattern_and_as_a_folder(engine: Engine, tmp_path: Path) -> None:
    z, c = np.linspace(0, 1, 300), np.arange(300) % 2
    folder = tmp_path / "all.parquet"
    folder.mkdir()
    for index, part in enumerate(np.array_split(np.arange(300), 3)):
        write(folder / f"part-{index}.parquet", confidence=z[part], correct=c[part])
    for source in (folder, str(folder / "part-*.parquet")):
        assert_agrees(engine(source), metrics.predictions(z, c))


def test_names_are_never_read_as_sql(engine: Engine, tmp_path: Path) -> None:
    z, c = np.linspace(0, 1, 30), np.arange(30) % 2
    confidence, correct = """z"`'; DROP VIEW source; --""", "c[0] {x}"
    names = Columns(confidence=confidence, correct=correct)
    folder = tmp_path / 'it\'s; [a] "folder"'
    folder.mkdir()
    path = write(folder / "p'[1].parquet", **{confidence: z, correct: c})
    assert_agrees(engine(path, columns=names), metrics.predictions(z, c))


def refuses(engine: Engine, path: Path, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{complaint}") as error:
        engine(path)
    assert "\n" not in str(error.value)


EMPTY = pa.array([[], [], []], pa.list_(pa.float32()))
GOOD: dict[str, Any] = {"confidence": [0.5, 0.6, 0.7], "correct": [0, 1, 1]}
PROBABILITIES: dict[str, Any] = {"probabilities": [[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]], "target": [0, 1, 1]}
LOGITS: dict[str, Any] = {"logits": [[0.5, 2.5], [0.1, 0.9], [0.3, 0.7]], "target": [0, 1, 1]}


@pytest.mark.parametrize(
    ("columns", "token"),
    [
        ({"confidence": [0.5], "right": [1]}, "no .correct.; it also has right"),
        ({"confidence": pa.array([], pa.float32()), "correct": pa.array([], pa.int8())}, "no rows"),
        ({"confidence": [0.5, 0.6], "correct": [0, 1]}, "2 rows"),
        (GOOD | {"confidence": [0.5, float("nan"), 0.7]}, "1 of 3 .*NaN"),
        (GOOD | {"confidence": [0.5, None, None]}, "2 of 3 .*no confidence"),
        (GOOD | {"confidence": [0.5, 1.5, 0.1]}, r"1 of 3 .*\[0, 1\]"),
        (GOOD | {"confidence": ["a", "b", "c"]}, "confidence .*numbers"),
        (GOOD | {"correct": [0, 1, 2]}, "1 of 3 .*correct"),
        (GOOD | {"correct": [False, None, True]}, "1 of 3 .*correct"),
        ({"logits_0": [1.0] * 3, "logits_2": [1.0] * 3, "target": [0] * 3}, "no 'logits_1'"),
        (PROBABILITIES | {"target": [0, 1, 2]}, "1 of 3 .* 0 to 1"),
        (PROBABILITIES | {"target": [0, 0.5, 1]}, "1 of 3 .*target"),
        (PROBABILITIES | {"target": [0, None, -1]}, "2 of 3 .*target"),
        (PROBABILITIES | {"probabilities": [[0.5, 0.5], [0.5, 0.6], [1.0, 0.0]]}, "1 of 3 .* sum to 1"),
        (PROBABILITIES | {"probabilities": [[0.5, 0.5], [1.0], [1.0, 0.0]]}, "1 of 3 .*different number"),
        (PROBABILITIES | {"probabilities": [[0.5, 0.5], [1.0, None], [1.0, 0.0]]}, "1 of 3 .*missing"),
        (PROBABILITIES | {"probabilities": [[0.5, 0.5], None, [1.0, 0.0]]}, "1 of 3 .*no probabilities"),
        (PROBABILITIES | {"probabilities": [[0.5, 0.5], [-1.0, 2.0], [1.0, 0.0]]}, r"1 of 3 .* \[0, 1\]"),
        (PROBABILITIES | {"probabilities": [[0.5, 0.5], [float("nan"), 1.0], [1.0, 0.0]]}, "1 of 3 .*NaN"),
        (PROBABILITIES | {"probabilities": EMPTY}, "probabilities .*empty"),
        (PROBABILITIES | {"probabilities": [0.5, 1.5, None]}, "1 of 3 .*no probabilities"),
        (LOGITS | {"logits": [[0.5, float("inf")], [0.1, 0.2], [0.3, float("nan")]]}, "2 of 3 .*infinite"),
        (LOGITS | {"logits": [[0.5, -float("inf")], [0.1, 0.2], [0.3, 0.4]]}, "1 of 3 .*infinite"),
    ],
)  # fmt: skip
def test_bad_columns_are_refused(engine: Engine, tmp_path: Path, columns: dict[str, Any], token: str) -> None:
    refuses(engine, write(tmp_path / "bad.parquet", **columns), token)


def test_bad_files_are_refused(engine: Engine, tmp_path: Path) -> None:
    not_parquet, other = tmp_path / "text.parquet", tmp_path / "p.xlsx"
    not_parquet.write_text("confidence,correct\n0.5,1\n")
    other.write_text("")
    for path, complaint in ((not_parquet, "is not a Parquet file|cannot be read"), (other, r"expected .*\.parquet")):
        refuses(engine, path, complaint)
    with pytest.raises(FileNotFoundError, match=r"absent\.parquet"):
        engine(tmp_path / "absent.parquet")


def test_csv_that_turns_into_words(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("\n".join(["confidence,correct", *["0.5,1"] * 30_000, "high,1"]))
    refuses(statistics_duckdb, path, "cannot be read: .*30002")


@pytest.mark.slow
def test_memory_limit_is_kept_by_spilling_and_the_directory_removed(tmp_path: Path) -> None:
    path, spill = tmp_path / "p.parquet", tmp_path / "spill"
    spill.mkdir()
    duckdb.sql(
        "SELECT hash(i) / 18446744073709551616 AS confidence, i % 2 AS correct FROM range(2_000_000) t(i)"
    ).write_parquet(str(path))
    seen: list[float] = []
    most: list[int] = []

    def progress(fraction: float) -> None:
        seen.append(fraction)
        most.append(len(list(spill.iterdir())))

    limited = statistics_duckdb(path, memory_limit="60MB", threads=1, temp_dir=spill, progress=progress)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1], max(most)) == (0.0, 1.0, 1)
    assert list(spill.iterdir()) == []
    z, c = duckdb.read_parquet(str(path)).order("confidence").fetchnumpy().values()
    assert (np.diff(z) > 0).all()  # 2,000,000 groups exceed 60 MB
    assert_agrees(limited, metrics.predictions(z, c))
    with pytest.raises(MemoryError, match="lower threads"):
        statistics_duckdb(path, memory_limit="8MB", threads=1, temp_dir=spill)
    assert list(spill.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"bins": 0}, ValueError), ({"bins": 2.5}, TypeError), ({"threads": 0}, ValueError),
        ({"memory_limit": "lots"}, ValueError), ({"memory_limit": "-1"}, ValueError),
        ({"memory_limit": "1"}, ValueError), ({"memory_limit": "1KB"}, MemoryError),
    ],
)  # fmt: skip
def test_bad_options(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        statistics_duckdb(write(tmp_path / "p.parquet", **GOOD), **options)


def test_a_missing_spark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ImportError, match=re.escape('pip install "calibrant[spark]"')):
        statistics_spark("p.parquet")


@pytest.mark.slow
def test_spark_takes_a_frame_and_never_gathers_its_rows(spark: Any, tmp_path: Path) -> None:
    z, c = confidences("uniform"), np.arange(900) % 2
    frame = spark.read.parquet(str(write(tmp_path / "p.parquet", confidence=z, correct=c)))
    assert_agrees(statistics_spark(frame, partitions=5), metrics.predictions(z, c))
    assert spark.catalog.listTables() == []
    with pytest.raises(ValueError, match=r"^the DataFrame: "):
        statistics_spark(frame.drop("correct"))

    frame.createOrReplaceTempView("plan")
    found = [Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    pairs = find_pairs(SqlSource(scale_sql.SPARK, lambda *_: [], "plan"), found, Columns(), risk=False)
    text = scale_sql.sums_statement(pairs, 20, [0.2, 0.4, 0.6, 0.8])
    plan = spark.sql(text)._jdf.queryExecution().executedPlan().toString()
    spark.catalog.dropTempView("plan")
    assert "Window" in plan
    assert "hashpartitioning(part" in plan
    assert "SinglePartition" not in plan
    assert spark.sql("SELECT 1 AS alive").collect()[0].alive == 1


@pytest.mark.parametrize("layout", ["one probability", "two probabilities", "one logit", "two logits", "a list"])
def test_of_two_classes_the_risk_of_class_1_can_be_judged(engine: Engine, tmp_path: Path, layout: str) -> None:
    rng = np.random.default_rng(0)
    risk, offset = rng.uniform(0.02, 0.98, 300), rng.normal(size=300)
    event, logit = (rng.random(300) < risk - 0.02).astype(int), np.log(risk / (1 - risk))
    columns: dict[str, dict[str, Any]] = {
        "one probability": {"probabilities": risk},
        "two probabilities": {"prob_0": 1 - risk, "prob_1": risk},
        "one logit": {"logits": logit},
        "two logits": {"logit_0": offset, "logit_1": offset + logit},
        "a list": {"probabilities": np.stack((1 - risk, risk), 1).tolist()},
    }
    path = write(tmp_path / "risks.parquet", **columns[layout], target=event)
    found = engine(path, risk=True)
    assert found.views[0].kind == "risk"
    expected = metrics.evaluate(risk, event)
    for key in ("gap", "ece", "ks_error", "esd", "brier_top"):
        assert getattr(found, key) == pytest.approx(expected[key], rel=1e-9, abs=1e-12), key
    assert engine(path).views[0].kind == "top label"


def test_of_three_classes_the_top_label_is_judged(engine: Engine, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = write(
        tmp_path / "three.parquet",
        probabilities=rng.dirichlet(np.ones(3), 50).tolist(),
        target=rng.integers(3, size=50),
    )
    assert engine(path, risk=True).views[0].kind == "top label"
    assert engine(path, risk=True).esd == engine(path).esd


def summed(folder: Path, confidence: Array, correct: Array) -> Statistics:
    return statistics_duckdb(write(folder / "pairs.parquet", confidence=confidence, correct=correct))


def made(error: float, n: int = 40_000, seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    confidence = 0.3 + 0.7 * generator.random(n) ** 0.2  # crowded towards 1
    return confidence, generator.random(n) < confidence - error


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("metric", ["esd", "ks_error", "gap"])
@pytest.mark.parametrize("error", [0.0, 0.002, 0.01])
def test_the_test_from_cells_agrees_with_that_of_the_samples(tmp_path: Path, metric: Any, error: float) -> None:
    found = summed(tmp_path, *(pairs := made(error)))
    ours = metrics.calibration_test(found.pairs, metric=metric, draws=1000)
    theirs = metrics.calibration_test(*pairs, metric=metric, draws=1000)
    assert found.judge(draws=40)[0].test.statistic == pytest.approx(metrics.esd(*pairs), rel=1e-9)
    # Two independent sets of draws: p-values differ by chance, by at most four of its standard deviations.
    assert abs(ours.p_value - theirs.p_value) < 4 * np.sqrt(2 * 0.25 / 1000)
    assert ours.critical_value == pytest.approx(theirs.critical_value, rel=0.35)


@pytest.mark.parametrize("error", [0.0, 0.01])
def test_the_interval_of_the_gap_is_that_of_the_samples(tmp_path: Path, error: float) -> None:
    pairs = made(error)
    ours = metrics.confidence_interval(summed(tmp_path, *pairs).pairs, metric="gap")
    theirs = metrics.confidence_interval(*pairs, metric="gap")
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high), abs=1e-8)


def test_samples_that_are_all_right_have_an_interval_too(tmp_path: Path) -> None:
    confidence, right = made(0)[0], np.ones(40_000)
    ours = metrics.confidence_interval(summed(tmp_path, confidence, right).pairs, metric="gap")
    theirs = metrics.confidence_interval(confidence, right, metric="gap")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-4)


def test_merged_cells_are_narrow_and_lose_no_sample(tmp_path: Path) -> None:
    found = summed(tmp_path, *made(0.01))
    cells = found.pairs.ties
    assert len(cells.samples) <= 1024 + 4096
    assert cells.samples.sum() == found.samples
    assert cells.right.sum() == pytest.approx(found.accuracy * found.samples)
    assert (cells.samples * cells.confidence).sum() == pytest.approx(found.mean_confidence * found.samples, rel=1e-12)
    assert (np.diff(cells.confidence) > 0).all()


@pytest.mark.slow
def test_p_values_of_calibrated_data_are_uniform(tmp_path: Path) -> None:
    p_values = []
    for seed in range(200):
        found = summed(tmp_path, *made(0.0, 2000, seed))
        p_values.append(metrics.calibration_test(found.pairs, draws=99, seed=seed).p_value)
    counts = np.histogram(p_values, bins=5, range=(0, 1))[0]
    assert ((counts - 40) ** 2 / 40).sum() < 18.5  # chi-squared with 4 degrees of freedom: 0.1 %


def classes(folder: Path, *, as_logits: bool, n: int = 20_000) -> tuple[Statistics, tuple[Judgement, ...]]:
    """Four classes of which two are mixed up by 3 points, beyond memory and in memory."""
    generator = np.random.default_rng(0)
    true = generator.dirichlet([4, 2, 1, 1], n)
    target = (true.cumsum(1) < generator.random((n, 1))).sum(1)
    stated = true + 0.03 * np.minimum(true[:, [2]], true[:, [3]]) / true[:, [2, 3]].mean() * np.array([0, 0, 1, -1])
    values = np.log(stated) + 1 if as_logits else stated
    name = "logits" if as_logits else "probabilities"
    path = write(folder / "classes.parquet", **{name: list(values)}, target=target)
    given: dict[str, Any] = {name: values}
    return statistics_duckdb(path, most_classes=50), metrics.judge(metrics.predictions(**given, target=target))


@pytest.mark.parametrize("as_logits", [False, True])
def test_single_classes_are_judged_as_in_memory(tmp_path: Path, as_logits: bool) -> None:
    found, (_, *theirs) = classes(tmp_path, as_logits=as_logits)
    _, *ours = found.judge()
    assert [each.view.name for each in ours] == ["0", "1", "2", "3"]
    assert [each.rejected for each in ours] == [each.rejected for each in theirs] == [False, False, True, True]
    for one, other in zip(ours, theirs, strict=True):
        mine, gap = (metrics.confidence_interval(each.view.pairs, metric="gap") for each in (one, other))
        assert (mine.value, mine.low, mine.high) == pytest.approx((gap.value, gap.low, gap.high), abs=1e-8)
        assert one.test.statistic == pytest.approx(other.test.statistic, rel=0.02, abs=1e-6)


def test_of_many_classes_those_expected_most_often_are_judged(tmp_path: Path) -> None:
    found, _ = classes(tmp_path, as_logits=False)
    chosen = statistics_duckdb(tmp_path / "classes.parquet", most_classes=2)
    assert [each.name for each in chosen.views[1:]] == ["0", "1"]
    assert (chosen.classes, found.classes) == (4, 4)
    assert all(len(each.pairs) <= 2 * 4097 for each in found.views[1:])
    assert len(statistics_duckdb(tmp_path / "classes.parquet").views) == 1
