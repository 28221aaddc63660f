"""Residual networks of four stages: with a stem for 32 x 32 images, or the one for ImageNet."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them; the first convolution has the stride."""

    expansion = 1
    projects = True

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(inputs, width, stride) if self.projects else None

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of ``width`` channels."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x), inplace=True)

    def shortcut(self, x: Tensor) -> Tensor:
        """The input, projected if its shape changes."""
        return x if self.downsample is None else self.downsample(x)


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two 1 x 1 ones, and a shortcut; the middle one has the stride, as in torchvision."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of ``4 * width`` channels."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)), inplace=True)


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Projection shortcut if shapes change, else None."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Residual network of four stages, 64 to 512 wide, with global average pooling; returns logits.

    The stem ``"cifar"`` is a 3 x 3 convolution of stride 1, for images of about 32 x 32; ``"imagenet"`` a 7 x 7
    convolution of stride 2 and max-pooling, for images of about 224 x 224. Modules have torchvision's names, so state
    dicts of the latter are interchangeable with torchvision's. Weights are initialised in the same way: convolutions
    from a normal distribution scaled by fan-out, batch normalisation with 1 and 0.

    References:
        He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        *,
        stem: Literal["cifar", "imagenet"],
        classes: int,
        channels: int = 3,
    ) -> None:
        super().__init__()
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f"stem must be 'cifar' or 'imagenet', got {stem!r}")
        if len(depths) != 4:
            raise ValueError(f"depths must have the blocks of four stages, got {len(depths)}: {tuple(depths)}")
        small = stem == "cifar"
        self.conv1 = nn.Conv2d(channels, 64, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = stage(block, depths[0], inputs=64, width=64, stride=1)
        self.layer2 = stage(block, depths[1], inputs=64 * block.expansion, width=128, stride=2)
        self.layer3 = stage(block, depths[2], inputs=128 * block.expansion, width=256, stride=2)
        self.layer4 = stage(block, depths[3], inputs=256 * block.expansion, width=512, stride=2)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(N, classes)`` of images ``(N, channels, height, width)``."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def stage(block: type[BasicBlock | Bottleneck], depth: int, *, inputs: int, width: int, stride: int) -> nn.Sequential:
    """A sequence of blocks, the first of which has the stride."""
    rest = [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, width, stride), *rest)
