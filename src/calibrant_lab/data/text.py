"""Sentence pairs, tokenised once and batched as padded tensors."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant_lab.data.batching import Batches

TOKENISED_AT_ONCE = 10_000


class Pairs(NamedTuple):
    """Premises, hypotheses and labels."""

    premises: list[str]
    hypotheses: list[str]
    labels: Tensor  # int64, (N,): 0 entailment, 1 neutral, 2 contradiction


class TextData(NamedTuple):
    """A data set of sentence pairs, with its published splits."""

    train: Pairs
    validation: Pairs
    test: Pairs
    classes: int


class TokenisedPairs:
    """Pairs as a recipe's :class:`~calibrant_lab.data.samples.Samples`: token ids, concatenated without padding."""

    def __init__(self, pairs: Pairs, tokenizer: Any, *, max_length: int) -> None:
        premises, hypotheses, self.labels = pairs
        if not len(premises) == len(hypotheses) == len(self.labels):
            raise ValueError(
                f"pairs need equal numbers of premises, hypotheses and labels, got {len(premises)}, {len(hypotheses)} "
                f"and {len(self.labels)}"
            )
        if tokenizer.pad_token_id is None:
            raise ValueError(
                "the tokenizer has no padding token: set tokenizer.pad_token, for example to its end token"
            )
        self.padding = {"input_ids": int(tokenizer.pad_token_id), "token_type_ids": int(tokenizer.pad_token_type_id)}
        self.pad_left = tokenizer.padding_side == "left"
        parts: dict[str, list[np.ndarray[Any, Any]]] = {}
        lengths: list[int] = []
        for first in range(0, len(premises), TOKENISED_AT_ONCE):
            part = slice(first, first + TOKENISED_AT_ONCE)
            tokenised = tokenizer(
                premises[part], hypotheses[part], truncation=True, max_length=max_length, return_attention_mask=False
            )
            lengths.extend(map(len, tokenised["input_ids"]))
            for name in self.padding.keys() & tokenised.keys():
                flat = np.concatenate([np.asarray(row, dtype=np.int32) for row in tokenised[name]])
                parts.setdefault(name, []).append(flat)
        self.flat = {name: torch.from_numpy(np.concatenate(found)) for name, found in sorted(parts.items())}
        self.starts = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)

    def batches(self, size: int, rows: Tensor | None = None, *, training: bool = False, even: bool = False) -> Batches:
        """Batches of the rows, each padded to its longest pair; shuffled for training."""
        return Batches(
            len(self.labels), size, lambda chosen: (self.padded(chosen), self.labels[chosen]), indices=rows,
            shuffle=training, even=even,
        )  # fmt: skip

    def content(self) -> Iterable[Tensor]:
        """Labels and tokens."""
        return self.labels, *self.flat.values()

    def padded(self, chosen: Tensor) -> dict[str, Tensor]:
        """Model inputs for some pairs, padded to the longest of them."""
        starts = self.starts[chosen]
        lengths = self.starts[chosen + 1] - starts
        width = int(lengths.max())
        place = torch.arange(width)
        if self.pad_left:
            place = place - (width - lengths).unsqueeze(1)
        mask = (place >= 0) & (place < lengths.unsqueeze(1))
        tokens = (starts.unsqueeze(1) + place)[mask]
        batch = {"attention_mask": mask.long()}
        for name, flat in self.flat.items():
            batch[name] = torch.full(mask.shape, self.padding[name])
            batch[name][mask] = flat.index_select(0, tokens).long()
        return batch
