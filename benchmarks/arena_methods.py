"""Methods of the arena: ours by name from ``calibrant.posthoc.auto``, and their peers, where installed."""

import ast
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

import calibrant
from calibrant.posthoc import logits_from_probabilities
from calibrant.posthoc.registry import METHODS

Array = NDArray[Any]
Predict = Callable[[Array], Array]
Fit = Callable[[Array, Array], Predict]
NOTHING = "nothing"
# Change with the functions below, so that what they gave is not used again.
ADAPTERS = "1"


class Method(NamedTuple):
    """A method: how it is fitted, which version it is, and for how many classes it is meant."""

    name: str
    fit: Fit
    version: str
    fewest: int = 2
    most: int = 10**9

    @property
    def ours(self) -> bool:
        """Whether it is one of Calibrant's."""
        return self.name.startswith("calibrant: ")


def methods() -> list[Method]:
    """Every method that can be run here."""
    return [
        Method(NOTHING, lambda _p, _y: lambda p: p, "1"),
        *(Method(f"calibrant: {name}", _ours(kind), source_version(kind.__module__)) for name, kind in METHODS.items()),
        *_probmetrics(),
        *_netcal(),
        *_scikit_learn(),
        *_venn_abers(),
        *_splinecalib(),
    ]


def absent() -> list[str]:
    """Packages to compare with that are not installed."""
    packages = {
        "probmetrics": "probmetrics",
        "netcal": "netcal",
        "venn_abers": "venn-abers",
        "splinecalib": "splinecalib",
    }
    return [name for module, name in packages.items() if not _installed(module)]


def _ours(kind: Callable[[], Any]) -> Fit:
    def fit(p: Array, y: Array) -> Predict:
        fitted = kind().fit(_logits(p), y)
        return lambda q: np.asarray(fitted.predict_proba(_logits(q)))

    return fit


def _logits(p: Array) -> Array:
    return np.asarray(logits_from_probabilities(p))


def source_version(module: str) -> str:
    """A digest of the code behind one of our methods: its module and those of the package that it imports.

    Comments and docstrings do not count, so that results stay when only words change. Neither does the package's
    ``__init__``, which imports every method.
    """
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        spec = importlib.util.find_spec(name)
        if name in seen or spec is None or spec.origin is None:
            continue
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        waiting += [name for name in _imports(tree) if name.startswith(("calibrant.posthoc.", "calibrant.numerics"))]
        seen[name] = ast.dump(_without_docstrings(tree))
    text = "\n".join(f"{name} {seen[name]}" for name in sorted(seen))
    return f"{calibrant.__version__}+{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("calibrant.") and _is_module(name)}


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a name inside a module
        return False


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _version(package: str) -> str:
    return f"{importlib.metadata.version(package)}/{ADAPTERS}"


def _probmetrics() -> list[Method]:
    """Its own methods, set as in CalArena; SMS and SVS for several classes, as their paper has them."""
    if not _installed("probmetrics"):
        return []
    they = importlib.import_module("probmetrics.calibrators")
    version = _version("probmetrics")

    def fitted(make: Callable[[], Any], one_against_rest: bool = False) -> Fit:
        def fit(p: Array, y: Array) -> Predict:
            calibrator = make()
            if one_against_rest and p.shape[1] > 2:
                calibrator = they.MulticlassOneVsRestCalibrator(calibrator)
            calibrator.fit(p, y)
            return lambda q: np.asarray(calibrator.predict_proba(q))

        return fit

    logistic = they.BinaryLogisticCalibrator
    return [
        Method("probmetrics: SMS", fitted(they.SMSCalibrator), version, fewest=3),
        Method("probmetrics: SVS", fitted(they.SVSCalibrator), version, fewest=3),
        Method("probmetrics: temperature", fitted(they.TemperatureScalingCalibrator), version),
        Method("probmetrics: ETS", fitted(they.ETSCalibrator), version),
        Method("probmetrics: beta", fitted(they.BetacalCalibrator, True), version),
        Method("probmetrics: affine", fitted(partial(logistic, type="affine")), version, most=2),
        Method("probmetrics: quadratic", fitted(partial(logistic, type="quadratic")), version, most=2),
        Method(
            "probmetrics: histogram",
            fitted(partial(they.BinaryHistogramBinningCalibrator, strategy="quantile"), True),
            version,
        ),
    ]  # fmt: skip


def _netcal() -> list[Method]:
    """In float64: its finite differences vanish in float32. Beta takes 345 s at 100 classes, so it ends before."""
    if not _installed("netcal"):
        return []
    binning = importlib.import_module("netcal.binning")
    scaling = importlib.import_module("netcal.scaling")
    version = _version("netcal")

    def given(p: Array) -> Array:
        return p[:, 1].astype(np.float64) if p.shape[1] == 2 else p.astype(np.float64)

    def fitted(make: Callable[[], Any], **options: Any) -> Fit:
        def fit(p: Array, y: Array) -> Predict:
            with redirect_stderr(io.StringIO()):  # bars of progress
                calibrator = make()
                calibrator.fit(given(p), y, **options)

            def predict(q: Array) -> Array:
                with redirect_stderr(io.StringIO()):
                    r = np.asarray(calibrator.transform(given(q)))
                return np.stack((1 - r, r), axis=1) if r.ndim == 1 else r

            return predict

        return fit

    return [
        Method("netcal: temperature", fitted(scaling.TemperatureScaling, random_state=0), version),
        Method("netcal: beta", fitted(scaling.BetaCalibration, random_state=0), version, most=50),
        Method("netcal: isotonic", fitted(binning.IsotonicRegression), version),
        Method("netcal: histogram", fitted(binning.HistogramBinning), version),
        Method("netcal: BBQ", fitted(binning.BBQ), version),
    ]


class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose features are its probabilities."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, x: Array, y: Array) -> "Given":  # noqa: ARG002 (scikit-learn's signature)
        """Fit nothing."""
        return self

    def predict(self, x: Array) -> Array:
        """The most probable class."""
        return np.asarray(np.argmax(x, axis=1))

    def predict_proba(self, x: Array) -> Array:
        """The probabilities themselves."""
        return x


def _scikit_learn() -> list[Method]:
    """``CalibratedClassifierCV`` around a frozen classifier that returns what it is given."""

    def fitted(method: str) -> Fit:
        def fit(p: Array, y: Array) -> Predict:
            calibrator = CalibratedClassifierCV(FrozenEstimator(Given(p.shape[1])), method=method, ensemble=False)
            # A class that the labels lack would be left out of the result.
            present = np.unique(y)
            calibrator.fit(p.astype(np.float64), y)

            def predict(q: Array) -> Array:
                r = np.asarray(calibrator.predict_proba(q.astype(np.float64)))
                if r.shape[1] == q.shape[1]:
                    return r
                full = np.zeros(q.shape)
                full[:, present] = r
                return full

            return predict

        return fit

    version = _version("scikit-learn")
    names = ["temperature", "sigmoid", "isotonic"]
    return [Method(f"scikit-learn: {name}", fitted(name), version) for name in names]


def _venn_abers() -> list[Method]:
    """The package of that name; it does its work at prediction. One against the rest, as in CalArena."""
    if not _installed("venn_abers"):
        return []
    package = importlib.import_module("venn_abers")

    def fit(p: Array, y: Array) -> Predict:
        return lambda q: np.asarray(
            package.VennAbersCalibrator().predict_proba(p_cal=p, y_cal=y, p_test=q, va_type="one_vs_all")
        )

    return [Method("venn-abers", fit, _version("venn-abers"))]


def _splinecalib() -> list[Method]:
    """Smoothing splines with a strength from cross-validation (Lucena 2018), for two classes, as it is by default."""
    if not _installed("splinecalib"):
        return []
    package = importlib.import_module("splinecalib")

    def fit(p: Array, y: Array) -> Predict:
        calibrator = package.SplineCalib()
        calibrator.fit(p[:, 1].astype(np.float64), y)

        def predict(q: Array) -> Array:
            r = np.asarray(calibrator.calibrate(q[:, 1].astype(np.float64)))
            return np.stack((1 - r, r), axis=1)

        return predict

    return [Method("splinecalib", fit, _version("splinecalib"), most=2)]


def bare_temperature() -> Method:
    """The fitter inside scikit-learn's ``method="temperature"``, without the classifier and the folds around it."""
    fitter = importlib.import_module("sklearn.calibration")._TemperatureScaling

    def fit(p: Array, y: Array) -> Predict:
        fitted = fitter().fit(p, y)
        return lambda q: np.asarray(fitted.predict(q))

    return Method("scikit-learn: bare temperature", fit, _version("scikit-learn"))
