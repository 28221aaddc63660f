"""Narrow residual networks: the published structure, and the published errors of trained weights."""

import numpy as np
import pytest
import torch

from calibrant_lab.data.cifar import unpickle
from calibrant_lab.models.resnet_he import NarrowBlock, NarrowResNet
from calibrant_lab.models.weights import load_weights
from tests.real_data import real

WEIGHTS = {
    20: "resnet20-12fca82f.th", 32: "resnet32-d509ac18.th", 44: "resnet44-014dd654.th", 56: "resnet56-4bfd9763.th",
}  # fmt: skip


@pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018)])
def test_networks_have_the_published_number_of_parameters(depth: int, count: int) -> None:
    model = NarrowResNet(depth)
    assert sum(parameter.dim() == 4 for parameter in model.parameters()) + 1 == depth
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_shortcut_subsamples_and_pads_channels_with_zeros_on_both_sides() -> None:
    torch.manual_seed(0)
    block = NarrowBlock(16, 32, 2).eval()
    torch.nn.init.zeros_(block.conv2.weight)  # leaves the shortcut alone
    x = torch.rand(2, 16, 6, 6)
    expected = torch.zeros(2, 32, 3, 3)
    for channel in range(16):
        for row in range(3):
            for column in range(3):
                expected[:, 8 + channel, row, column] = x[:, channel, 2 * row, 2 * column]
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("depth", [0, 2, 18, 21])
def test_a_depth_that_is_not_6n_plus_2_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        NarrowResNet(depth)


@pytest.mark.parametrize(("depth", "percent"), [(20, 8.27), (32, 7.37), (44, 6.90), (56, 6.61)])
def test_published_weights_have_their_published_error_on_cifar10(depth: int, percent: float) -> None:
    model = NarrowResNet(depth).eval()
    load_weights(model, real(f"weights/{WEIGHTS[depth]}"))
    path = real("cifar10/cifar-10-batches-py/test_batch")
    batch = unpickle(path, path.read_bytes())
    images = torch.tensor(batch[b"data"].values).view(-1, 3, 32, 32) / 255
    target = torch.tensor(batch[b"labels"])
    saved = np.load(real("logits/akamaster_resnets_cifar10_test_logits.npz"))
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = (images - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        logits = torch.cat([model(batch) for batch in images.split(250)])
    assert int((logits.argmax(1) != target).sum()) == round(100 * percent)
    np.testing.assert_allclose(logits.numpy(), saved[f"resnet{depth}"], rtol=1e-3, atol=1e-3)
