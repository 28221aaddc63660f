"""LeNet5 for 32 x 32 images."""

import torch
from torch import Tensor, nn


class LeNet5(nn.Sequential):
    """Two convolutions with max-pooling and three linear layers; returns logits.

    Takes ``(N, channels, 32, 32)``. ReLU and max-pooling replace the sigmoid and subsampling of the original, as is
    usual today. Pooling comes before ReLU, which gives the same values and gradients at a quarter of the cost; the
    weights are channels-last, which is faster on a CPU.

    References:
        LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition",
        Proceedings of the IEEE 1998.
    """

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        super().__init__(
            nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, classes),
        )  # fmt: skip
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch forgot to type it

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(N, classes)`` of images ``(N, channels, 32, 32)``."""
        if x.dim() != 4 or x.shape[-2:] != (32, 32):
            raise ValueError(
                f"LeNet5 takes images of shape (N, channels, 32, 32), got {tuple(x.shape)}: resize them to 32 x 32 "
                "pixels, or choose a residual network, which takes other sizes too"
            )
        logits: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return logits
