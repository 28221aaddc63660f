"""Wide residual networks: their published sizes, and the implementation in transformers under torchvision's names."""

import re

import pytest
import torch
from torch import Tensor, nn

from calibrant_lab.models import IMAGE_MODELS
from calibrant_lab.models.resnet import BasicBlock, Bottleneck, ResNet


def disturb(model: nn.Module) -> None:
    """Give batch normalisation something to do, as after training."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.data.uniform_(0.5, 1.5, generator=generator)


def name_in_transformers(name: str) -> str:
    """Where transformers' ResNet keeps what we, like torchvision, call ``name``."""
    name = re.sub(r"^fc", "classifier.1", name)
    name = re.sub(r"^conv1", "resnet.embedder.embedder.convolution", name)
    name = re.sub(r"^bn1", "resnet.embedder.embedder.normalization", name)
    name = re.sub(r"^layer(\d)\.(\d)\.", lambda m: f"resnet.encoder.stages.{int(m[1]) - 1}.layers.{m[2]}.", name)
    name = re.sub(r"downsample\.0", "shortcut.convolution", name).replace("downsample.1", "shortcut.normalization")
    name = re.sub(r"\.conv(\d)\.", lambda m: f".layer.{int(m[1]) - 1}.convolution.", name)
    return re.sub(r"\.bn(\d)\.", lambda m: f".layer.{int(m[1]) - 1}.normalization.", name)


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [("resnet18", 1000, 11_689_512), ("resnet18-cifar", 10, 11_173_962), ("resnet34-cifar", 10, 21_282_122),
     ("resnet50-cifar", 10, 23_520_842)],
)  # fmt: skip
def test_networks_have_the_published_number_of_parameters(name: str, classes: int, count: int) -> None:
    with torch.device("meta"):
        model = IMAGE_MODELS[name](classes=classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize(
    ("block", "depths", "layer_type"), [(BasicBlock, (2, 2, 2, 2), "basic"), (Bottleneck, (1, 2, 1, 1), "bottleneck")]
)
def test_logits_equal_those_of_transformers(
    block: type[BasicBlock | Bottleneck], depths: tuple[int, ...], layer_type: str
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    ours = ResNet(block, depths, stem="imagenet", classes=7).eval()
    disturb(ours)
    widths = [width * block.expansion for width in (64, 128, 256, 512)]
    config = transformers.ResNetConfig(depths=list(depths), hidden_sizes=widths, layer_type=layer_type, num_labels=7)
    theirs = transformers.ResNetForImageClassification(config).eval()
    theirs.load_state_dict({name_in_transformers(name): tensor for name, tensor in ours.state_dict().items()})
    images = torch.randn(2, 3, 72, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-4, atol=1e-4)


def test_the_cifar_stem_keeps_the_resolution() -> None:
    model = ResNet(BasicBlock, (2, 2, 2, 2), stem="cifar", classes=10).eval()
    seen: list[Tensor] = []
    for part in (model.layer1, model.layer2, model.layer3, model.layer4, model.fc):
        part.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        model(images)
        torch.testing.assert_close(seen[0], model.bn1(model.conv1(images)).clamp(min=0))
    assert [tuple(x.shape[1:]) for x in seen] == [(64, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8), (512,)]


def test_weights_start_as_torchvisions_do() -> None:
    torch.manual_seed(0)
    model = ResNet(Bottleneck, (1, 1, 1, 1), stem="cifar", classes=2)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.bias is None
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
        elif isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert not module.bias.any()


@pytest.mark.parametrize(("depths", "stem", "token"), [((1, 1, 1, 1), "mnist", "stem"), ((1, 1), "cifar", "stages")])
def test_errors(depths: tuple[int, ...], stem: str, token: str) -> None:
    with pytest.raises(ValueError, match=token):
        ResNet(BasicBlock, depths, stem=stem, classes=2)  # type: ignore[arg-type]
