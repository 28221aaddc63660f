"""Batches of pairs against the tokenizer's own padding."""

from typing import Any

import pytest
import torch

from calibrant_lab.data.text import Pairs, TokenisedPairs

WORDS = ["a", "man", "cat", "dog", "sits", "runs", "sleeps", "outside", "in", "the", "sun", "quickly", "and"]
UNKNOWN = "[UNK]"


def make_tokenizer(**settings: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: k for k, word in enumerate([UNKNOWN, "[CLS]", "[SEP]", *WORDS, "[PAD]"])}
    core = Tokenizer(models.WordLevel(vocabulary, UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    defaults = {
        "tokenizer_object": core, "pad_token": "[PAD]", "unk_token": UNKNOWN, "cls_token": "[CLS]",
        "sep_token": "[SEP]", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }  # fmt: skip
    make: Any = PreTrainedTokenizerFast
    return make(**(defaults | settings))


def pairs(count: int) -> Pairs:
    generator = torch.Generator().manual_seed(0)

    def sentence() -> str:
        length = int(torch.randint(1, 12, (), generator=generator))
        return " ".join(WORDS[k] for k in torch.randint(len(WORDS), (length,), generator=generator))

    return Pairs([sentence() for _ in range(count)], [sentence() for _ in range(count)], torch.arange(count) % 3)


SETTINGS: dict[str, dict[str, Any]] = {
    "types": {},
    "no types": {"model_input_names": ["input_ids", "attention_mask"]},
    "left": {"padding_side": "left"},
}


@pytest.mark.parametrize("at_once", [7, 10_000])
@pytest.mark.parametrize("name", SETTINGS)
def test_batches_equal_the_tokenizers_own(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant_lab.data.text.TOKENISED_AT_ONCE", at_once)
    tokenizer, data = make_tokenizer(**SETTINGS[name]), pairs(50)
    indices = torch.arange(49, 0, -2)
    loader = TokenisedPairs(data, tokenizer, max_length=14).batches(8, indices)
    widths = set()
    for (batch, labels), chosen in zip(loader, indices.split(8), strict=True):
        expected = tokenizer(
            [data.premises[k] for k in chosen], [data.hypotheses[k] for k in chosen],
            truncation=True, max_length=14, padding="longest", return_tensors="pt",
        )  # fmt: skip
        assert batch.keys() == expected.keys()
        for key, values in batch.items():
            assert values.dtype == torch.int64
            assert torch.equal(values, expected[key]), key
        assert torch.equal(labels, data.labels[chosen])
        widths.add(batch["input_ids"].shape[1])
    assert max(widths) == 14


def test_errors() -> None:
    with pytest.raises(ValueError, match="2, 3 and 3"):
        TokenisedPairs(Pairs(["a"] * 2, ["a"] * 3, torch.zeros(3)), make_tokenizer(), max_length=8)
    with pytest.raises(ValueError, match="padding"):
        TokenisedPairs(pairs(3), make_tokenizer(pad_token=None), max_length=8)
