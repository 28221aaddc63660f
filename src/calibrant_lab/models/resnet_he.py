"""The narrow residual networks that He et al. designed for CIFAR: ResNet20, 32, 44, 56."""

from torch import Tensor, nn
from torch.nn import functional as F

from calibrant_lab.models.resnet import BasicBlock, stage


class NarrowBlock(BasicBlock):
    """Two 3 x 3 convolutions with a shortcut without parameters.

    At the start of a stage, the shortcut keeps every second pixel and pads the new channels with zeros, half of them in
    front ("option A" of the paper).
    """

    projects = False

    def shortcut(self, x: Tensor) -> Tensor:
        """The input; height and width are halved if the number of channels grows."""
        added = (self.conv1.out_channels - self.conv1.in_channels) // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, added, added)) if added else x


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
        self.layer1 = stage(NarrowBlock, blocks, inputs=16, width=16, stride=1)
        self.layer2 = stage(NarrowBlock, blocks, inputs=16, width=32, stride=2)
        self.layer3 = stage(NarrowBlock, blocks, inputs=32, width=64, stride=2)
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
