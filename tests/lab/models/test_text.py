"""Text classifiers, with a small random BERT saved to a folder."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from calibrant_lab.models.text import TextClassifier, check_fits, tokenizer_for  # noqa: E402
from tests.lab.pickles import Intruder  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "##ly", "made", "film"]


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def bert(**settings: Any) -> Any:
    return transformers.BertConfig(**SMALL | {"vocab_size": len(WORDS)} | settings)


def from_config(config: Any) -> TextClassifier:
    return TextClassifier(transformers.AutoModelForSequenceClassification.from_config(config))


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A folder with an encoder that has no head yet, and its vocabulary."""
    torch.manual_seed(0)
    transformers.BertModel(bert()).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    return tmp_path


def test_logits_equal_those_of_the_network_inside(encoder: Path) -> None:
    model, tokenizer = TextClassifier.from_pretrained(encoder, classes=3).eval(), tokenizer_for(encoder)
    batch = tokenizer(["A goodly film", "badly made"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[2, 5, 6, 8, 10, 3], [2, 7, 8, 9, 3, 0]]
    reference = transformers.BertModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        logits = model(**batch)
        pooled = reference(**batch).pooler_output
        head: Any = model.network.classifier
        torch.testing.assert_close(logits, pooled @ head.weight.T + head.bias)
    assert logits.shape == (2, 3)


def test_it_comes_ready_to_train_in_float32(encoder: Path) -> None:
    transformers.BertModel.from_pretrained(encoder).half().save_pretrained(encoder)
    model = TextClassifier.from_pretrained(encoder, classes=2)
    assert all(module.training for module in model.modules())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_trained_classifier_comes_back_as_it_was_saved(encoder: Path, tmp_path: Path) -> None:
    model = TextClassifier.from_pretrained(encoder, classes=3)
    model.network.save_pretrained(tmp_path / "trained")  # type: ignore[operator]
    again = TextClassifier.from_pretrained(tmp_path / "trained", classes=3)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match="2 classes"):
        TextClassifier.from_pretrained(tmp_path / "trained", classes=2)


def test_pickled_weights_are_read_but_nothing_in_them_is_run(encoder: Path, tmp_path: Path) -> None:
    weights, pickled = encoder / "model.safetensors", encoder / "pytorch_model.bin"
    state = transformers.BertModel.from_pretrained(encoder).state_dict()
    weights.unlink()
    torch.save(state, pickled)
    loaded = TextClassifier.from_pretrained(encoder, classes=2).state_dict()
    assert all(torch.equal(loaded[f"network.bert.{name}"], tensor) for name, tensor in state.items())
    torch.save(state | {"intruder": Intruder(tmp_path / "intruded")}, pickled)
    with pytest.raises(ValueError, match="safetensors"):
        TextClassifier.from_pretrained(encoder, classes=2)
    assert not (tmp_path / "intruded").exists()


def test_code_that_comes_with_weights_is_not_run(encoder: Path) -> None:
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoTokenizer": ["mine.T", None]}}
    (encoder / "config.json").write_text(json.dumps(own))
    (encoder / "mine.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    with pytest.raises(ValueError, match="custom code"):
        TextClassifier.from_pretrained(encoder, classes=2)
    assert not list(encoder.glob("**/ran"))


@pytest.mark.parametrize("load", [lambda name: TextClassifier.from_pretrained(name, classes=2), tokenizer_for])
def test_errors_of_names(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("no-such-model-anywhere", "./no/such/folder"):
        with pytest.raises(OSError, match=f"^'{name}'.*save_pretrained$"):
            load(name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"calibrant\[hf\]"):
        load("bert-base-uncased")


def test_errors_of_folders(encoder: Path) -> None:
    config, weights = (encoder / name for name in ("config.json", "model.safetensors"))
    (encoder / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="vocabulary"):
        tokenizer_for(encoder)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"16 tensors.*bert.encoder.layer.2"):
        TextClassifier.from_pretrained(encoder, classes=2)
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="transformers"):
        TextClassifier.from_pretrained(encoder, classes=2)


def test_a_tokenizer_fits_a_model_that_embeds_all_its_tokens(encoder: Path) -> None:
    tokenizer = tokenizer_for(encoder)
    for rows in (len(WORDS), len(WORDS) + 5):
        check_fits(from_config(bert(vocab_size=rows)), tokenizer, 128)
    with pytest.raises(ValueError, match=r"0\.\.10.* 0\.\.9"):
        check_fits(from_config(bert(vocab_size=10)), tokenizer, 128)
    tokenizer.add_tokens(["zebra"])
    with pytest.raises(ValueError, match=r"0\.\.11.* 0\.\.10"):
        check_fits(from_config(bert()), tokenizer, 128)


# Configurations that transformers knows, for texts of at most 16 tokens: RoBERTa leaves out positions up to that
# of padding, BART keeps two more than it says, GPT-2 names its table otherwise.
LIMITS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", SMALL | {"max_position_embeddings": 16}),
    "roberta": ("RobertaConfig", SMALL | {"max_position_embeddings": 18, "pad_token_id": 1}),
    "bart": ("BartConfig", {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "max_position_embeddings": 16, "pad_token_id": 1, "eos_token_id": 2,
    }),
    "gpt2": ("GPT2Config", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "pad_token_id": 0}),
}  # fmt: skip
LIMIT = 16


@pytest.mark.parametrize("name", LIMITS)
def test_the_longest_text_is_the_longest_the_network_takes(encoder: Path, name: str) -> None:
    kind, settings = LIMITS[name]
    config = getattr(transformers, kind)(vocab_size=len(WORDS), num_labels=2, **settings)
    model, tokenizer = from_config(config).eval(), tokenizer_for(encoder)
    # BART looks for the end of the text, which is token 2.
    text = torch.full((1, LIMIT + 1), 5)
    text[:, -1] = 2
    check_fits(model, tokenizer, LIMIT)
    assert model(input_ids=text[:, 1:]).shape == (1, 2)
    with pytest.raises(ValueError, match=f"max_length.*{LIMIT + 1}.*{LIMIT}"):
        check_fits(model, tokenizer, LIMIT + 1)
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=text)


def test_a_network_without_a_table_of_positions_takes_texts_of_any_length(encoder: Path) -> None:
    config = transformers.DebertaV2Config(
        vocab_size=len(WORDS), **SMALL, max_position_embeddings=16, position_biased_input=False
    )
    check_fits(from_config(config), tokenizer_for(encoder), 1000)
