"""A small BERT, batches for it and arguments of a Trainer, which the tests share."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

Batch = dict[str, Tensor]
CLASSES = 3


def pad(samples: list[dict[str, Any]]) -> Batch:
    tokens = nn.utils.rnn.pad_sequence([sample["input_ids"] for sample in samples], batch_first=True)
    labels = torch.stack([sample["labels"] for sample in samples])
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}


def bert(dropout: float = 0.0, seed: int = 0, **config: Any) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": 16, "initializer_range": 0.2, "num_labels": CLASSES,
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout,
    }  # fmt: skip
    return BertForSequenceClassification(BertConfig(**sizes | config))


def arguments(folder: Path, **changed: Any) -> TrainingArguments:
    given: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "max_steps": 1, "learning_rate": 1.0,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "save_strategy": "no", "logging_steps": 1,
        "report_to": "none", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    return TrainingArguments(**(given | changed))


def flat(model: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of TrainingArguments, and others."""
    names = {field.name for field in fields(TrainingArguments)}
    ours = {name: value for name, value in options.items() if name not in names}
    return {name: value for name, value in options.items() if name in names}, ours


def take_place(rank: int, ranks: int, port: int) -> None:
    """Let a Trainer of this process be one of several."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
