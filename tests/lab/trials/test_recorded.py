"""A run that was killed and started again ends as one that was not, to the last bit."""

import csv
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from calibrant.training import interleave
from calibrant_lab.trials.recorded import RecordedModule, WholeCheckpointIO
from tests.ranks import prepared_processes
from tests.training import lightning_runs
from tests.training.lightning_runs import EPOCHS, STEPS, data, result, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The order of summation depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def classifier(**options: Any) -> RecordedModule:
    made = lightning_runs.classifier(RecordedModule, **options)
    assert isinstance(made, RecordedModule)
    return made


def trainer(folder: Path, *callbacks: lightning.Callback, **options: Any) -> lightning.Trainer:
    return lightning_runs.trainer(folder, *callbacks, plugins=[WholeCheckpointIO()], **options)


class Kill(lightning.Callback):
    """SIGKILL in the middle of a step, before it is counted."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_to_be_killed(folder: Path, kill_at: int | None) -> None:
    """Start, or start again from the last checkpoint; die at a step, or write the result."""
    torch.set_num_threads(1)
    last = folder / "last.ckpt"
    saving = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True)
    trains = trainer(folder, saving, *(() if kill_at is None else (Kill(kill_at),)))
    trains.fit(classifier(), datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True)
    torch.save(result(trains), folder / "result.pt")


@pytest.mark.slow  # those below stop a run without a signal
def test_a_run_killed_again_and_again_ends_as_one_that_was_not(tmp_path: Path) -> None:
    server = prepared_processes()
    # Steps are counted from 0, an epoch is 4, checkpoints come after every second: one kill before the first of them,
    # one right after it, one mid-epoch with a step to repeat, two after the end of an epoch, one in the last step.
    for kill_at in [1, 2, 3, 4, 5, STEPS + 3, EPOCHS * STEPS - 1]:
        process = server.Process(target=run_to_be_killed, args=(tmp_path, kill_at))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, kill_at
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == EPOCHS * STEPS - 2
    process = server.Process(target=run_to_be_killed, args=(tmp_path, None))
    process.start()
    process.join(60)
    never_killed = trainer(tmp_path)
    never_killed.fit(classifier(), datamodule=data())
    assert same(torch.load(tmp_path / "result.pt", weights_only=True), result(never_killed))


SETTINGS: dict[str, dict[str, Any]] = {
    "validation every epoch": {},
    "validation within an epoch": {"val_check_interval": 2},
    "validation every other epoch": {"check_val_every_n_epoch": 2},
    "no validation": {"limit_val_batches": 0},
    "shortened epochs": {"limit_train_batches": 3},
    "two batches a step": {"accumulate_grad_batches": 2},
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "step scheduler": ({"scheduler_interval": "step"}, {}),
    "every other step": ({}, {"calibration_every": 2}),
    "no calibration": ({"objective": None}, {"calibration_fraction": 0}),
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    name: (options, {}, {}) for name, options in SETTINGS.items()
}
CASES |= {name: ({}, *variant) for name, variant in VARIANTS.items()}


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, dict[str, Any]]:
    return {}


def expected_of(case: str, known: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
    if case not in known:
        options, of_classifier, of_data = CASES[case]
        plain = trainer(folder, **options)
        plain.fit(classifier(**of_classifier), datamodule=data(**of_data))
        known[case] = result(plain)
    return known[case]


class SaveAtEnds(Checkpoint):
    """Checkpoints after validations and epochs; like ModelCheckpoint, it comes after the module's own hooks."""

    def on_validation_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / f"validated-{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / f"epoch-{trainer.global_step}.ckpt")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("case", CASES)
def test_checkpoints_from_ends_of_validations_and_epochs_lead_to_the_same_end(
    case: str, uninterrupted: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    options, of_classifier, of_data = CASES[case]
    expected = expected_of(case, uninterrupted, tmp_path)
    assert len(expected["history"]) == EPOCHS
    saving = trainer(tmp_path, SaveAtEnds(), **options)
    saving.fit(classifier(**of_classifier), datamodule=data(**of_data))
    assert same(result(saving), expected)
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) >= EPOCHS
    for checkpoint in checkpoints:
        resumed = trainer(tmp_path, **options)
        resumed.fit(classifier(**of_classifier), datamodule=data(**of_data), ckpt_path=checkpoint, weights_only=True)
        assert same(result(resumed), expected), checkpoint.name


class InterruptedRunError(Exception):
    pass


class Interrupt(lightning.Callback):
    """Stop a run at the beginning of its second step."""

    def __init__(self) -> None:
        self.steps = 0

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.steps += 1
        if self.steps == 2:
            raise InterruptedRunError


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("case", CASES)
def test_a_run_of_which_every_step_is_a_resume_comes_to_the_same_end(
    case: str, uninterrupted: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    options, of_classifier, of_data = CASES[case]
    for generation in range(EPOCHS * STEPS):
        last = tmp_path / "last.ckpt"
        saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_last=True)
        run = trainer(tmp_path, saving, Interrupt(), **options)
        ckpt_path = last if generation else None
        with suppress(InterruptedRunError):
            run.fit(classifier(**of_classifier), datamodule=data(**of_data), ckpt_path=ckpt_path, weights_only=True)
            break
    assert same(result(run), expected_of(case, uninterrupted, tmp_path))


def test_loaders_of_the_users_own_are_picked_up_too(tmp_path: Path) -> None:
    def loaders() -> dict[str, Any]:
        module = data()
        kinds = (module.train_part, module.calibration_part)
        loader = interleave(*(torch.utils.data.DataLoader(part, 25, shuffle=True) for part in kinds if part))
        return {"train_dataloaders": loader, "val_dataloaders": module.val_dataloader()}

    torch.manual_seed(0)
    saving = trainer(tmp_path, ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1))
    model = classifier()
    torch.manual_seed(4)
    saving.fit(model, **loaders())
    resumed = trainer(tmp_path)
    resumed.fit(classifier(), **loaders(), ckpt_path=tmp_path / "step=3.ckpt", weights_only=True)
    assert same(result(resumed), result(saving))


def test_loggers_see_the_epoch_whose_end_was_due(tmp_path: Path) -> None:
    saving = trainer(tmp_path, ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1))
    saving.fit(classifier(), datamodule=data())
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    resumed = trainer(tmp_path, logger=logger, log_every_n_steps=STEPS)
    resumed.fit(classifier(), datamodule=data(), ckpt_path=tmp_path / f"step={STEPS}.ckpt")
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["epoch"] == "0"]
    expected = result(saving)["history"][0]
    assert {name: float(value) for name, value in rows[0].items() if name != "step"} == pytest.approx(expected)


def test_a_failure_while_writing_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, io = tmp_path / "last.ckpt", WholeCheckpointIO()
    io.save_checkpoint({"step": 1}, path)

    def half(_: object, to: IO[bytes]) -> None:
        to.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space"):
        io.save_checkpoint({"step": 2}, path)
    assert io.load_checkpoint(path, weights_only=True) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_what_a_killed_writer_left_is_not_taken_for_the_last_checkpoint(tmp_path: Path) -> None:
    saving = trainer(tmp_path, ModelCheckpoint(tmp_path, save_last=True), max_epochs=1)
    saving.fit(classifier(), datamodule=data())
    (tmp_path / "last.ckpt.partial").write_bytes(b"half")
    resumed = trainer(tmp_path, ModelCheckpoint(tmp_path, save_last=True), max_epochs=2)
    resumed.fit(classifier(), datamodule=data(), ckpt_path="last")
    assert [entry["epoch"] for entry in result(resumed)["history"]] == [0, 1]
