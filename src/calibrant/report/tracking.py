"""Experiment trackers: scores, reliability diagrams and the calibrator of a model in a run of MLflow or W&B."""

import io
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant import frames, inputs
from calibrant.metrics import Scores, evaluate, predictions
from calibrant.posthoc import Calibrator, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "calibrator.safetensors"


class Tracked(NamedTuple):
    """What goes to a tracker: scores and figures of the model, and of its calibrated predictions."""

    scores: dict[str, Scores]
    figures: "dict[str, Figure]"

    def numbers(self) -> dict[str, float]:
        """Finite scores by ``stage/key``."""
        return {
            f"{stage}/{entry.key}": entry.value
            for stage, scores in self.scores.items()
            for entry in scores
            if math.isfinite(entry.value)
        }


def log_mlflow(
    logits: Any,
    target: Any,
    *,
    calibrator: Calibrator | None = None,
    run_id: str | None = None,
    step: int | None = None,
    folder: str = "calibration",
) -> dict[str, Scores]:
    """Store scores, reliability diagrams and the calibrator in a run of MLflow.

    Scores are metrics ``calibration/model/ece``, ..., and ``calibration/calibrated/ece``, ... if there is a calibrator;
    figures and the calibrator's file are artifacts in the folder ``calibration``.

    Args:
        logits: Test logits, as for ``predict_proba``: not those that the calibrator was fitted on.
        target: Class indices, or names if the calibrator was fitted on names.
        calibrator: A fitted calibrator, saved as ``calibrator.safetensors``; None for the scores of the model alone.
        run_id: The run; by default the active one.
        step: Step of the metrics.
        folder: Prefix of the metrics, and folder of the artifacts.

    Returns:
        The scores, by ``"model"`` and ``"calibrated"``.

    Raises:
        ModuleNotFoundError: If mlflow or matplotlib is missing: ``pip install 'calibrant[mlflow]'``.
        ValueError: If no run is active.
    """
    mlflow = _package("mlflow")
    active = mlflow.active_run()
    if run_id is None and active is None:
        raise ValueError("no run of MLflow is active: call log_mlflow inside mlflow.start_run(), or pass run_id=")
    run = run_id or active.info.run_id
    tracked = _tracked(logits, target, calibrator)
    client = mlflow.MlflowClient()
    for name, value in tracked.numbers().items():
        client.log_metric(run, f"{folder}/{name}", value, step=step)
    for name, figure in tracked.figures.items():
        client.log_figure(run, figure, f"{folder}/reliability-{name}.png")
    if calibrator is not None:
        with tempfile.TemporaryDirectory() as temporary:
            save(calibrator, Path(temporary, FILE))
            client.log_artifact(run, str(Path(temporary, FILE)), folder)
    return tracked.scores


def log_wandb(
    logits: Any,
    target: Any,
    *,
    calibrator: Calibrator | None = None,
    run: Any = None,
    step: int | None = None,
    folder: str = "calibration",
) -> dict[str, Scores]:
    """Store scores, reliability diagrams and the calibrator in a run of Weights & Biases.

    Scores and figures are logged as ``calibration/model/ece``, ..., and ``calibration/calibrated/ece``, ... if there
    is a calibrator; its file is an artifact of the type ``calibrator``.

    Args:
        logits: Test logits, as for ``predict_proba``: not those that the calibrator was fitted on.
        target: Class indices, or names if the calibrator was fitted on names.
        calibrator: A fitted calibrator, saved as ``calibrator.safetensors``; None for the scores of the model alone.
        run: The run that ``wandb.init`` returned; by default the active one.
        step: Step of the scores.
        folder: Prefix of the scores and figures, and name of the artifact.

    Returns:
        The scores, by ``"model"`` and ``"calibrated"``.

    Raises:
        ModuleNotFoundError: If wandb or matplotlib is missing: ``pip install 'calibrant[wandb]'``.
        ValueError: If no run is active.
    """
    wandb = _package("wandb")
    run = wandb.run if run is None else run
    if run is None:
        raise ValueError("no run of W&B is active: call wandb.init() before log_wandb, or pass run=")
    tracked = _tracked(logits, target, calibrator)
    values: dict[str, Any] = dict(tracked.numbers())
    values |= {f"{name}/reliability": wandb.Image(_picture(figure)) for name, figure in tracked.figures.items()}
    run.log({f"{folder}/{name}": value for name, value in values.items()}, step=step)
    if calibrator is not None:
        artifact = wandb.Artifact(folder, type="calibrator")
        with tempfile.TemporaryDirectory() as temporary:
            save(calibrator, Path(temporary, FILE))
            artifact.add_file(str(Path(temporary, FILE)))
        run.log_artifact(artifact)
    return tracked.scores


def _tracked(logits: Any, target: Any, calibrator: Calibrator | None) -> Tracked:
    from calibrant.report.figures import reliability_diagram

    values = inputs.numbers("logits", logits)
    names = None if calibrator is None or not frames.has_names(target) else calibrator.classes_.tolist()
    labels = target if names is None else frames.class_indices(target, names)
    stages = {"model": predictions(logits=values, target=labels)}
    if calibrator is not None:
        after = np.asarray(calibrator.predict_proba(values))
        stages["calibrated"] = predictions(probabilities=after, target=labels)
    return Tracked(
        {stage: evaluate(given) for stage, given in stages.items()},
        {stage: reliability_diagram(given, title=stage) for stage, given in stages.items()},
    )


def _picture(figure: "Figure") -> Any:
    """A figure as an image of pillow: W&B takes figures only from pyplot."""
    from PIL import Image

    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return Image.open(file)


def _package(name: str) -> Any:
    import importlib

    for package in (name, "matplotlib"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"log_{name} needs {package}: pip install 'calibrant[{name}]'", name=package
            ) from error
    return importlib.import_module(name)
