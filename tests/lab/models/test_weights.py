"""Files of weights: envelopes are opened, damage and mismatch are told, nothing is run."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant_lab.models.weights import load_weights
from tests.lab.pickles import Intruder


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_envelopes_are_opened(prefix: str, wrapped: bool, counted: bool, tmp_path: Path) -> None:
    source = {name: torch.rand(tensor.shape).to(tensor.dtype) for name, tensor in network().state_dict().items()}
    state = {prefix + name: tensor for name, tensor in source.items() if counted or "num_batches" not in name}
    torch.save({"state_dict": state, "best_prec1": 91.7} if wrapped else state, tmp_path / "weights.th")
    model = network()
    load_weights(model, tmp_path / "weights.th")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, source[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"0.bias": None}, "0.bias"),
        ({"2.weight": torch.zeros(3)}, "2.weight"),
        ({"0.weight": torch.zeros(2, 3, 3, 3)}, "shape"),
    ],
)
def test_weights_of_another_network_leave_this_one_alone(
    changes: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    state = network().state_dict() | changes
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "weights.pt")
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=rf"weights\.pt.*{message}"):
        load_weights(model, tmp_path / "weights.pt")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_cut_short_is_told(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(network().state_dict(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, len(whole) // 40):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"weights\.pt"):
            load_weights(network(), path)


@pytest.mark.parametrize("way", ["torch", "torch-legacy", "pickle"])
def test_nothing_in_a_file_is_run(way: str, tmp_path: Path) -> None:
    path, trace = tmp_path / "weights.pt", tmp_path / "intruded"
    if way == "pickle":
        path.write_bytes(pickle.dumps({"0.weight": Intruder(trace)}, protocol=2))
    else:
        torch.save({"0.weight": Intruder(trace)}, path, _use_new_zipfile_serialization=way == "torch")
    with pytest.raises(ValueError, match="tensors"):
        load_weights(network(), path)
    assert not trace.exists()


@pytest.mark.parametrize("content", [[], {}, {"epoch": 3}, torch.zeros(2), {"state_dict": {"0.bias": "text"}}])
def test_a_file_without_a_state_dict_is_told(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="state dict"):
        load_weights(network(), tmp_path / "weights.pt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt"):
        load_weights(network(), tmp_path / "nowhere.pt")
