"""The narrow residual networks that He et al. designed for CIFAR: ResNet20, 32, 44, 56."""

from torch import Tensor, nn
from torch.nn import functional as F


class NarrowBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut without parameters.

    At the start of a stage, the shortcut keeps every second pixel and pads the new channels with zeros, half of them in
    front ("option A" of the paper).
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, width // inputs, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.added = width - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of ``width`` channels; height and width are halved if the number of channels grows."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.added:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.added // 2, self.added // 2))
        return F.relu(out + x, inplace=True)


class NarrowResNet(nn.Module):
    """Residual network of three stages, 16, 32 and 64 wide, for 32 x 32 images; ``depth`` counts layers with weights.

    References:
        He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """

    def __init__(self, depth: int, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        blocks, left = divmod(depth - 2, 6)
        if left or blocks < 1:
            raise ValueError(f"depth must be 6 n + 2 (8, 14, 20, ...), got {depth}")
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(blocks, inputs=16, width=16)
        self.layer2 = _stage(blocks, inputs=16, width=32)
        self.layer3 = _stage(blocks, inputs=32, width=64)
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(N, classes)`` of images ``(N, channels, 32, 32)``."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def _stage(blocks: int, *, inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(NarrowBlock(inputs, width), *(NarrowBlock(width, width) for _ in range(blocks - 1)))
