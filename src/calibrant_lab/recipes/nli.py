"""Sentence pairs, with a network of Hugging Face: SNLI with BERT and ANLI with RoBERTa, as in the ESD paper."""

from typing import Any

from pydantic import Field
from torch import nn

from calibrant_lab.data.nli import load_anli, load_snli
from calibrant_lab.data.samples import Data
from calibrant_lab.data.text import TextData, TokenisedPairs
from calibrant_lab.models.text import TextClassifier, check_fits, tokenizer_for
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.settings import Settings


class PairSettings(Settings):
    """Settings of recipes of sentence pairs."""

    model: str = Field("bert-base-uncased", description="Name or folder of a Hugging Face model.")
    max_length: int = Field(128, ge=8, description="Tokens per sentence pair; longer pairs are truncated.")


def text_pairs(found: TextData, settings: PairSettings) -> Data:
    """Tokenise pairs of texts for the network of the settings."""
    tokenizer = tokenizer_for(settings.model)
    train, validation, test = (
        TokenisedPairs(pairs, tokenizer, max_length=settings.max_length)
        for pairs in (found.train, found.validation, found.test)
    )
    return Data(train, test, validation=validation, classes=found.classes)


def text_classifier(data: Data, settings: PairSettings) -> nn.Module:
    """The network of the settings, with a new classification head."""
    network = TextClassifier.from_pretrained(settings.model, classes=data.classes)
    check_fits(network, tokenizer_for(settings.model), settings.max_length)
    return network


_COMMON: dict[str, Any] = {"settings": PairSettings, "epochs": 15, "learning_rate": 1e-5}  # as published
snli = Recipe(
    lambda settings, folder: text_pairs(load_snli(folder), settings), text_classifier, max_length=158, **_COMMON
)  # fmt: skip
anli = Recipe(
    lambda settings, folder: text_pairs(load_anli(folder), settings), text_classifier, model="roberta-base", **_COMMON
)
