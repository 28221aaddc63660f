"""Private names of transformers that this package depends on. Tested with transformers 4.46.1 and 5.22.2."""

from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler
from transformers import Trainer


class OpenTrainer(Trainer):
    """A ``Trainer`` with hooks for saved and loaded checkpoints, and loaders of other data."""

    _drawn_at_random: Any = None

    def on_checkpoint_saved(self, folder: Path) -> None:
        """Called when a checkpoint has been written, in the process that writes."""

    def on_checkpoint_loaded(self, folder: Path) -> None:
        """Called when a checkpoint to resume from has been loaded."""

    @property
    def training_batch_size(self) -> int:
        """Samples of a training batch on each process."""
        return self._train_batch_size

    def prepared(self, batch: Any) -> Any:
        """A batch as the model takes it, on its device."""
        return self._prepare_inputs(batch)

    def loader_like_training(self, dataset: Any, batch_size: int) -> DataLoader[Any]:
        """Make a loader as ``get_train_dataloader`` makes that of the training set, with samples in random order."""
        train = self.train_dataset, self._train_batch_size
        self.train_dataset, self._train_batch_size, self._drawn_at_random = dataset, batch_size, dataset
        try:
            return self.get_train_dataloader()
        finally:
            self._drawn_at_random = None
            self.train_dataset, self._train_batch_size = train

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int] | None:
        if self._drawn_at_random is None:
            return super()._get_train_sampler(*args, **kwargs)
        # Grouping by length speeds training up, but a statistic of a batch needs a random sample of the whole.
        return RandomSampler(self._drawn_at_random) if hasattr(self._drawn_at_random, "__len__") else None

    def _save_checkpoint(self, model: nn.Module, trial: Any, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(model, trial, *args, **kwargs)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save and folder.exists():
            self.on_checkpoint_saved(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        self.on_checkpoint_loaded(Path(resume_from_checkpoint))
