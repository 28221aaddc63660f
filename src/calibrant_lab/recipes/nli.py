"""SNLI with BERT and ANLI with RoBERTa, as in the ESD paper; any pairs of sentences."""

from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import nn

from calibrant_lab.data import PairSamples, TextData, TokenisedPairs, load_anli, load_snli
from calibrant_lab.data.samples import Data
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.settings import Settings


class PairSettings(Settings):
    """Settings of recipes of pairs of sentences."""

    model: str = Field("bert-base-uncased", description="Name or folder of a Hugging Face model.")
    max_length: int = Field(128, ge=8, description="Tokens that a pair of sentences is cut to.")


def pair_data(found: TextData, settings: PairSettings) -> Data:
    """Pairs of sentences, tokenised for the model that the settings name."""
    from calibrant_lab.models.text import tokenizer_for

    tokenizer = tokenizer_for(settings.model)
    train, validation, test = (
        PairSamples(TokenisedPairs(pairs, tokenizer, max_length=settings.max_length))
        for pairs in (found.train, found.validation, found.test)
    )
    return Data(train, test, validation, classes=found.classes)


def build_classifier(data: Data, settings: PairSettings) -> nn.Module:
    """The pretrained model with a head for the classes."""
    from calibrant_lab.models.text import TextClassifier, check_fits, tokenizer_for

    network = TextClassifier.from_pretrained(settings.model, classes=data.classes)
    check_fits(network, tokenizer_for(settings.model), settings.max_length)
    return network


def _load(read: Any, settings: PairSettings, folder: Path | None) -> Data:
    return pair_data(read(folder), settings)


_AS_PUBLISHED: dict[str, Any] = {"epochs": 15, "learning_rate": 1e-5}
snli = Recipe(
    partial(_load, load_snli), build_classifier, settings=PairSettings, max_length=158, **_AS_PUBLISHED
)  # fmt: skip
anli = Recipe(partial(_load, load_anli), build_classifier, settings=PairSettings, model="roberta-base", **_AS_PUBLISHED)
