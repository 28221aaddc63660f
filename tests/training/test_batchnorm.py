"""The calibration pass may leave BatchNorm's running statistics alone; everything else stays."""

import copy

import pytest
import torch
from torch import nn

from calibrant.training.forward import freeze_batchnorm_statistics


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_stay_and_outputs_and_gradients_do_not_change(momentum: float | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum), nn.ReLU(), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    x = torch.randn(8, 3)
    before = copy.deepcopy(dict(model.named_buffers()))
    with freeze_batchnorm_statistics(model):
        output = model(x)
    output.square().sum().backward()
    expected = twin(x)
    expected.square().sum().backward()
    assert torch.equal(output, expected)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    model(x)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


def test_a_layer_in_evaluation_mode_still_goes_by_its_running_statistics() -> None:
    model = nn.BatchNorm1d(2).eval()
    model.running_mean = torch.tensor([1.0, 2.0])
    x = torch.randn(4, 2)
    with freeze_batchnorm_statistics(model):
        output = model(x)
    assert torch.equal(output, model(x))


def test_layers_are_put_back_after_an_error_and_those_without_statistics_stay_without() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(RuntimeError, match="stop"), freeze_batchnorm_statistics(model):
        raise RuntimeError("stop")
    assert [layer.track_running_stats for layer in model] == [True, False]
