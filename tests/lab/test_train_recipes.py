"""The recipes that are not pictures in memory, trained for real on a handful of samples and resumed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.store import CHECKPOINT, Store
from tests.lab.training import killed_at, trained

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "runs", "sleeps", "not"]
LABELS = ["entailment", "neutral", "contradiction"]


def text_folder(folder: Path) -> dict[str, Any]:
    """Forty pairs of sentences in SNLI's files, and a small random BERT."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part, count in (("train", 40), ("dev", 24), ("test", 24)):
        rows = [
            {"gold_label": LABELS[k % 3]}
            | {f"sentence{n}": " ".join(generator.choice(WORDS[5:], 5 - n)) for n in (1, 2)}
            for k in range(count)
        ]
        (folder / f"snli_1.0_{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    torch.manual_seed(0)
    small = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(small).save_pretrained(folder / "bert")
    (folder / "bert/vocab.txt").write_text("\n".join(WORDS))
    return {"model": str(folder / "bert"), "batch_size": 12, "max_length": 16}


def picture_folder(folder: Path) -> dict[str, Any]:
    """Three classes with ten pictures each to train on, and three to test on."""
    generator = np.random.default_rng(0)
    for label, name in enumerate(["ant", "bee", "cat"]):
        for part, count in (("train", 10), ("val", 3)):
            (folder / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = generator.integers(0, 200, (40, 40, 3), dtype=np.uint8) + 25 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / part / name / f"{k}.png")
    return {"image_size": 32, "batch_size": 10, "workers": 0, "validation_fraction": 0.2}


MADE = {"snli": text_folder, "imagenet100": picture_folder}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "more", "step"), [("snli", {}, 4), ("imagenet100", {}, 3), ("imagenet100", {"workers": 2}, 3)]
)
def test_a_recipe_trains_and_goes_on_after_an_interruption(
    recipe: str, more: dict[str, int], step: int, tmp_path: Path
) -> None:
    settings = MADE[recipe](tmp_path / "data") | {"epochs": 2, "calibration_fraction": 0.3} | more
    configuration = configure(recipe, "esd", settings=settings)
    whole = trained(Store(tmp_path / "whole"), configuration, tmp_path / "data")
    assert 0 <= whole.result().test["accuracy"] <= 1

    store = Store(tmp_path / "runs")
    assert (killed_at(step, store, configuration, tmp_path / "data").folder / CHECKPOINT).exists()
    resumed = trained(store, configuration, tmp_path / "data")
    for name in ("history.json", "data.json", "model.pt"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert resumed.result().test == whole.result().test


def test_a_list_of_classes_is_used_and_its_content_is_part_of_the_identity(tmp_path: Path) -> None:
    settings = picture_folder(tmp_path / "data") | {"class_list": str(tmp_path / "classes.txt"), "epochs": 1}
    identities = []
    for names in ("ant\nbee\n", "ant\ncat\n"):
        (tmp_path / "classes.txt").write_text(names)
        configuration = configure("imagenet100", settings=settings)
        identities.append(configuration.identity)
    trial = trained(Store(tmp_path / "runs"), configuration, tmp_path / "data")
    assert torch.load(trial.folder / "model.pt", weights_only=True)["fc.bias"].shape == (2,)
    assert identities[0] != identities[1]
