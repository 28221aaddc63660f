"""Experiment trackers: scores, reliability diagrams and the calibrator of a model in a run of MLflow or W&B."""

import io
import math
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant import inputs
from calibrant.metrics import evaluate, predictions
from calibrant.metrics.evaluate import Scores
from calibrant.posthoc import Calibrator, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVED = "calibrator.safetensors"


def log_mlflow(
    logits: Any,
    target: Any,
    *,
    calibrator: Calibrator | None = None,
    run_id: str | None = None,
    step: int | None = None,
    folder: str = "calibration",
) -> dict[str, Scores]:
    """Store scores by stage, which are returned, reliability diagrams and the calibrator in a run of MLflow.

    Scores are metrics ``calibration/model/ece``, ..., and ``calibration/calibrated/ece``, ... if there is a calibrator;
    figures and the calibrator's file are artifacts in the folder ``calibration``.

    Args:
        logits: Test logits, as for ``predict_proba``: not those that the calibrator was fitted on.
        target: Class indices, or names if the calibrator was fitted on names.
        calibrator: A fitted calibrator, saved as ``calibrator.safetensors``; None for the scores of the model alone.
        run_id: The run; by default the active one.
        step: Step of the metrics.
        folder: Prefix of the metrics, and folder of the artifacts.
    """
    mlflow = _package("mlflow")
    active = mlflow.active_run()
    if run_id is None and active is None:
        raise ValueError("no run of MLflow is active: call log_mlflow inside mlflow.start_run(), or pass run_id=")
    run = run_id or active.info.run_id
    scores, numbers, figures = _evaluated(logits, target, calibrator)
    client = mlflow.MlflowClient()
    for name, value in numbers.items():
        client.log_metric(run, f"{folder}/{name}", value, step=step)
    for name, figure in figures.items():
        client.log_figure(run, figure, f"{folder}/reliability-{name}.png")
    if calibrator is not None:
        with tempfile.TemporaryDirectory() as temporary:
            save(calibrator, Path(temporary, SAVED))
            client.log_artifact(run, str(Path(temporary, SAVED)), folder)
    return scores


def log_wandb(
    logits: Any,
    target: Any,
    *,
    calibrator: Calibrator | None = None,
    run: Any = None,
    step: int | None = None,
    folder: str = "calibration",
) -> dict[str, Scores]:
    """Store scores, reliability diagrams and the calibrator in a run of Weights & Biases, as :func:`log_mlflow` does.

    Scores and figures are logged as ``calibration/model/ece``, ..., and ``calibration/calibrated/ece``, ... if there
    is a calibrator; its file is an artifact of the type ``calibrator``. By default the run is the active one.
    """
    wandb = _package("wandb")
    from PIL import Image

    run = wandb.run if run is None else run
    if run is None:
        raise ValueError("no run of W&B is active: call wandb.init() before log_wandb, or pass run=")
    scores, numbers, figures = _evaluated(logits, target, calibrator)
    for name, figure in figures.items():
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=150)
        numbers[f"{name}/reliability"] = wandb.Image(Image.open(file))  # it takes figures only from pyplot
    run.log({f"{folder}/{name}": value for name, value in numbers.items()}, step=step)
    if calibrator is not None:
        artifact = wandb.Artifact(folder, type="calibrator")
        with tempfile.TemporaryDirectory() as temporary:
            save(calibrator, Path(temporary, SAVED))
            artifact.add_file(str(Path(temporary, SAVED)))
        run.log_artifact(artifact)
    return scores


def _evaluated(
    logits: Any, target: Any, calibrator: Calibrator | None
) -> "tuple[dict[str, Scores], dict[str, Any], dict[str, Figure]]":
    from calibrant.report.figures import reliability_diagram

    values = inputs.numbers("logits", logits)
    if calibrator is not None and inputs.has_names(target):
        target = inputs.class_indices(target, calibrator.classes_.tolist())
    stages = {"model": predictions(logits=values, target=target)}
    if calibrator is not None:
        after = np.asarray(calibrator.predict_proba(values))
        stages["calibrated"] = predictions(probabilities=after, target=target)
    scores = {stage: evaluate(given) for stage, given in stages.items()}
    figures = {stage: reliability_diagram(given, title=stage) for stage, given in stages.items()}
    numbers = {f"{stage}/{key}": value for stage, found in scores.items() for key, value in dict(found).items()}
    return scores, {name: value for name, value in numbers.items() if math.isfinite(value)}, figures


def _package(name: str) -> Any:
    """The tracker, or an error that names the extra; figures need matplotlib too."""
    try:
        import_module("matplotlib")
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"log_{name} needs {error.name}: pip install 'calibrant[{name}]'", name=error.name
        ) from error
