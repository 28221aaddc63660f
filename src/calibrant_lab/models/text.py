"""Sequence classifiers of transformers, by name on the Hugging Face hub or from a local folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from textwrap import shorten
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Names that transformers uses for learned position embeddings.
POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


class TextClassifier(nn.Module):
    """A pretrained encoder with a classification head; takes the output of its tokenizer and returns logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path, *, classes: int) -> Self:
        """Load a pretrained network in float32 and training mode, with a new head unless the weights include one.

        Code that comes with the weights is not run, and pickled weights are read by torch's restricted unpickler. A
        head for another number of classes is refused.
        """
        with _quiet() as transformers, _explained(name_or_folder):
            network, info = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(name_or_folder),
                num_labels=classes,
                trust_remote_code=False,
                weights_only=True,
                ignore_mismatched_sizes=True,  # checked below, with our own error message
                output_loading_info=True,
            )
            _check_weights(network, classes, info)
        # transformers keeps the dtype of saved weights, and returns networks in evaluation mode.
        return cls(network.float()).train()

    def forward(self, **inputs: Tensor) -> Tensor:
        """Logits ``(N, classes)`` of a tokenized batch: ``model(**tokenizer(texts, return_tensors="pt"))``."""
        logits: Tensor = self.network(**inputs).logits
        return logits


def tokenizer_for(name_or_folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a network, by the same name or from the same folder."""
    with _quiet() as transformers, _explained(name_or_folder):
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            str(name_or_folder), trust_remote_code=False
        )
        # Without its files, transformers returns a tokenizer without a vocabulary.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("the tokenizer has no vocabulary: save it there too, with tokenizer.save_pretrained")
    return tokenizer


def check_fits(model: TextClassifier, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Check before training that the model has an embedding for every token and enough positions.

    Networks without a table of positions (rotary or relative) accept texts of any length.
    """
    network: Any = model.network
    embedded = network.get_input_embeddings().num_embeddings
    largest = max(tokenizer.get_vocab().values())
    if largest >= embedded:
        raise ValueError(
            f"the tokenizer has token ids 0..{largest}, but the model embeds only 0..{embedded - 1}: use the "
            "tokenizer of the model"
        )
    for name, module in network.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in POSITION_TABLES:
            # Unused rows before the first token: BART-like networks have an offset, RoBERTa-like ones a padding index.
            after_padding = 0 if module.padding_idx is None else module.padding_idx + 1
            positions = module.num_embeddings - (int(getattr(module, "offset", 0)) or after_padding)
            if max_length > positions:
                raise ValueError(
                    f"max_length is {max_length}, but the model has {positions} positions: set max_length to "
                    f"{positions} or less"
                )


def _check_weights(network: Any, classes: int, info: dict[str, Any]) -> None:
    """Only the head and the pooler below it may have random initial weights."""
    encoder = f"{network.base_model_prefix}."
    absent = sorted(name for name in info["missing_keys"] if name.startswith(encoder) and ".pooler." not in name)
    if absent:
        raise ValueError(f"its weights lack {len(absent)} tensors that its configuration needs, such as {absent[0]}")
    for name, found, expected in sorted(info["mismatched_keys"]):
        hint = "" if name.startswith(encoder) else f": it is not a classifier of {classes} classes"
        raise ValueError(f"{name} has shape {tuple(found)} instead of {tuple(expected)}{hint}")


@contextmanager
def _quiet() -> Iterator[ModuleType]:
    """Import transformers, without its warning about a new head and its loading bar; download bars stay."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError("text classifiers need transformers: pip install 'calibrant[hf]'") from error
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logging: Any = transformers.utils.logging
    verbosity, bars, download_bars = (
        logging.get_verbosity(), logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    )  # fmt: skip
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if download_bars:
        enable_progress_bars()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        if not download_bars:
            disable_progress_bars()


@contextmanager
def _explained(name_or_folder: str | Path) -> Iterator[None]:
    """One sentence instead of the long message of transformers about a name it cannot load."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # damaged files can raise anything
        if isinstance(error, UnpicklingError):  # its own message suggests unsafe unpickling
            reason = "its weights are pickled with more than tensors, save them as safetensors"
        else:
            reason = shorten(str(error) or type(error).__name__, 240, placeholder=" ...").rstrip(".")
        if isinstance(error, OSError) and not Path(name_or_folder).is_dir():
            raise OSError(
                f"{str(name_or_folder)!r} is not a local folder, and could not be loaded from the Hugging Face hub "
                f"({reason}): check the name and the network, or give a folder written by save_pretrained"
            ) from error
        raise ValueError(f"{name_or_folder}: transformers cannot load this: {reason}") from error
