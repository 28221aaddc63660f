"""`python -m benchmarks.files`: processor time to read a million predictions of ten classes from every format."""

import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import machine
from benchmarks.tables import duration, finish, markdown, show, status
from calibrant.files import read_source, write_predictions

ROWS, CLASSES = 1_000_000, 10
FORMATS = (".npz", ".parquet", ".csv", ".csv.gz", ".jsonl")
PROMISED = {".csv": 3.0}


def seconds(path: Path) -> float:
    """Processor time of all threads to read a file."""
    start = time.process_time()
    read_source(path)
    return time.process_time() - start


def by_numpy(path: Path) -> float:
    """Processor time of numpy.loadtxt for the same CSV, twice: once for the values, once for the labels."""
    start = time.process_time()
    np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(CLASSES))
    np.loadtxt(path, delimiter=",", skiprows=1, usecols=CLASSES)
    return time.process_time() - start


def main() -> None:
    """Measure, print, write results/files.md, and fail if a promise is not kept."""
    rng = np.random.default_rng(0)
    values, target = rng.dirichlet(np.ones(CLASSES), ROWS), rng.integers(CLASSES, size=ROWS)
    rows, broken = [], []
    with tempfile.TemporaryDirectory() as folder:
        for suffix in FORMATS:
            status(suffix)
            path = Path(folder, f"predictions{suffix}")
            write_predictions(path, values, target)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.apply(seconds, (path,))
                peer = duration(pool.apply(by_numpy, (path,))) if suffix == ".csv" else ""
            if found > PROMISED.get(suffix, np.inf):
                broken.append(f"{suffix}: {found:.1f} s, promised {PROMISED[suffix]:g} s")
            rows.append([suffix, f"{path.stat().st_size / 1e6:,.0f} MB", duration(found), peer])
    status("")
    heading = ["format", "file", "CPU time", "numpy.loadtxt"]
    show("Reading files", heading, rows)
    text = (
        f"# Reading files\n\nMeasured by `python -m benchmarks.files` on {machine()}. Processor time of all threads to "
        f"read {ROWS:,} predictions of {CLASSES} classes with their labels in a fresh process, without its imports. "
        f"A CSV is promised to take at most {PROMISED['.csv']:g} s.\n\n{markdown(heading, rows)}\n"
    )
    finish("files", text, broken)


if __name__ == "__main__":
    main()
