"""Accuracy and calibration of trained networks on corrupted test images."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, TypeAdapter
from rich.console import Console
from torch import Tensor, nn

from calibrant.commands.terminal import timed_bar
from calibrant.files import FileError, read_json, write_json
from calibrant_lab.data.images import Images, ImageSamples
from calibrant_lab.data.samples import Data
from calibrant_lab.models.weights import load_weights
from calibrant_lab.scores import Predicted, score
from calibrant_lab.shift.corruptions import SEVERITIES
from calibrant_lab.shift.sources import ShiftedImages, SourceName, shifted_images
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.fit import predict
from calibrant_lab.trials.store import WEIGHTS, Result, Store, Trial

SHIFT = "shift.json"
# Processors round differently; another network or other data differ far more.
SAME_LOGITS = 1e-2
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # JSON has no NaN
FIVE = Field(min_length=len(SEVERITIES), max_length=len(SEVERITIES))


@dataclass(frozen=True)
class ShiftScore:
    """Scores as shares, not percent: ECE in 20 bins as in the paper, as trained and after temperature scaling.

    The temperature is fitted on clean validation data and does not change accuracy. If no temperature could be fitted,
    its ECE is NaN.
    """

    accuracy: Number
    ece: Number
    ece_temperature: Number


@dataclass(frozen=True)
class ShiftRequest:
    """A request; results are reused only for the same request."""

    source: SourceName
    corruptions: tuple[str, ...]
    limit: int | None  # use only the first images of the test set
    fingerprint: str  # of the images and the training run


@dataclass(frozen=True)
class ShiftResult:
    """One network under distribution shift."""

    request: ShiftRequest
    images: int  # at each severity of each corruption
    temperature: Number  # fitted on the validation set, or given
    clean: ShiftScore  # severity 0: the clean test set
    corrupted: dict[str, Annotated[tuple[ShiftScore, ...], FIVE]]  # severities 1 to 5

    def by_severity(self, measure: str) -> list[list[float]]:
        """For each severity from 0 to 5, one value per corruption; a single value for severity 0."""
        worse = [[getattr(scores[at], measure) for scores in self.corrupted.values()] for at in range(len(SEVERITIES))]
        return [[getattr(self.clean, measure)], *worse]


RESULTS = TypeAdapter(list[ShiftResult])


def shift_of(
    plan: Plan, store: Store, data: Path | None, *, corrupted: Path | None, limit: int | None, console: Console
) -> dict[str, list[ShiftResult]]:
    """Evaluate every finished trial of a plan under distribution shift; results by name of the row."""
    source = shifted_images(plan.base, data, corrupted)
    trials = {trial: store.trial(trial) for row in plan.rows for trial in row.trials if store.result(trial) is not None}
    results = dict(zip(trials, evaluate_shifts([*trials.values()], source, limit=limit, console=console), strict=True))
    return {row.name: [results[trial] for trial in row.trials if trial in results] for row in plan.rows}


def kept_shifts(plan: Plan, store: Store) -> dict[str, list[ShiftResult]]:
    """Stored complete results of a plan's rows, for the images and corruptions that most trials have."""
    found = {trial: _complete(store.trial(trial)) for row in plan.rows for trial in row.trials if store.result(trial)}
    kinds = Counter(kind for results in found.values() for kind in results)
    # Ties go to the larger number of images.
    most = max(kinds, key=lambda kind: (kinds[kind], kind[-1]), default=None)
    return {
        row.name: [found[trial][most] for trial in row.trials if most in found.get(trial, {})] if most else []
        for row in plan.rows
    }


def _complete(trial: Trial) -> dict[tuple[str, tuple[str, ...], int], ShiftResult]:
    """Complete results by source, corruptions and number of images; only those of the current training run."""
    trained = _trained(trial.result())
    return {
        (result.request.source, result.request.corruptions, result.images): result
        for result in _kept(trial)
        if trained in result.request.fingerprint and set(result.corrupted) == set(result.request.corruptions)
    }


def _trained(result: Result) -> str:
    return f"accuracy {result.test['accuracy']:.9g}, nll {result.test['nll']:.9g}"


def evaluate_shifts(
    trials: Sequence[Trial],
    source: ShiftedImages,
    *,
    limit: int | None = None,
    temperatures: Sequence[float] | None = None,
    console: Console | None = None,
) -> list[ShiftResult]:
    """Evaluate several finished trials of one recipe; images are corrupted once for all of them.

    Results are stored in the folder of each trial after every corruption, so an interruption loses at most one, and
    stored results are not computed again. By default temperatures are fitted on the validation sets.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 image, got {limit}")
    temperatures = temperatures or [trial.result().validation["temperature"] for trial in trials]
    results = [_begun(trial, source, limit, own) for trial, own in zip(trials, temperatures, strict=True)]
    lacking = [[name for name in source.corruptions if name not in result.corrupted] for result in results]
    with timed_bar(console, "{task.completed} of {task.total}") as progress:
        task = progress.add_task("distribution shift", total=sum(map(len, lacking)))
        for name in source.corruptions:
            todo = [place for place, names in enumerate(lacking) if name in names]
            most = max((results[place].images for place in todo), default=0)
            shifted = [source.corrupted(name, severity, most) for severity in SEVERITIES] if todo else []
            for place in todo:
                trial, result = trials[place], results[place]
                network = _network(trial, shifted[0])
                if name == lacking[place][0]:
                    _check_images(trial, network, shifted[0].labels, source.clean, result.images)
                scores = tuple(
                    _score(_predicted(trial, network, images, result.images), result.temperature) for images in shifted
                )
                results[place] = replace(result, corrupted={**result.corrupted, name: scores})
                _keep(trial, results[place])
                progress.update(task, advance=1, description=f"distribution shift: {name.replace('_', ' ')}")
    return results


def _begun(trial: Trial, source: ShiftedImages, limit: int | None, temperature: float) -> ShiftResult:
    """The stored part of a result, or a new one with the scores on the clean test set."""
    trained, test = _trained(trial.result()), trial.predicted("test")
    images = len(test.target) if limit is None else min(limit, len(test.target))
    asked = ShiftRequest(
        source.source, source.corruptions, images if images < len(test.target) else None,
        f"{source.fingerprint}, {trained}, T {temperature:.9g}",
    )  # fmt: skip
    if (found := next((result for result in _kept(trial) if result.request == asked), None)) is not None:
        return found
    clean = _score(Predicted(test.logits[:images], test.target[:images]), temperature)
    return ShiftResult(asked, images, temperature, clean, {})


def _network(trial: Trial, images: Images) -> nn.Module:
    path = trial.folder / WEIGHTS
    if not path.is_file():
        raise FileError(path, "does not exist, and new images need the network: copy it there, or run the trial again")
    samples, classes = ImageSamples(images), trial.predicted("test").logits.shape[1]
    # The file with the initial weights may be gone, and is not needed.
    settings = trial.configuration.settings.model_copy(update={"initial_weights": None})
    network = trial.configuration.of_recipe.build(Data(samples, samples, classes=classes), settings)
    load_weights(network, path)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return network.to(device or "cpu").to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _predicted(trial: Trial, network: nn.Module, images: Images, count: int) -> Predicted:
    settings: Any = trial.configuration.settings
    given = Images(images.pixels[:count], images.labels[:count])
    return predict(network, ImageSamples(given, mean=settings.mean, std=settings.std).batches(len(given.labels)))


def _check_images(trial: Trial, network: nn.Module, labels: Tensor, clean: Images | None, count: int) -> None:
    """Check that the images are those the trial was tested on: the clean images must give the stored predictions."""
    kept = trial.predicted("test")
    same = labels[:count].equal(kept.target[:count])
    if same and clean is not None:
        now = _predicted(trial, network, clean, count).logits
        same = torch.allclose(now, kept.logits[:count], rtol=SAME_LOGITS, atol=SAME_LOGITS)
    if not same:
        raise FileError(
            trial.folder,
            "was tested on other images: give the --data-dir it was run with, or the published corruptions of its data",
        )


def _score(predicted: Predicted, temperature: float) -> ShiftScore:
    scaled = Predicted(predicted.logits / temperature, predicted.target)
    ece_temperature = math.nan if math.isnan(temperature) else score("ece", scaled)
    return ShiftScore(score("accuracy", predicted), score("ece", predicted), ece_temperature)


def _keep(trial: Trial, result: ShiftResult) -> None:
    """Store a result in the trial's file, replacing an earlier part of it."""
    others = [one for one in _kept(trial) if one.request != result.request]
    write_json(trial.folder / SHIFT, {"results": [asdict(one) for one in (*others, result)]})


def _kept(trial: Trial) -> list[ShiftResult]:
    """Stored results; an unreadable file counts as empty, since results can be recomputed."""
    path = trial.folder / SHIFT
    if path.exists():
        with suppress(KeyError, TypeError, ValueError):
            return RESULTS.validate_python(read_json(path)["results"])
    return []
