"""LeNet5 for 32 x 32 images of one channel."""

from torch import nn


class LeNet5(nn.Sequential):
    """Two convolutions with max-pooling and three linear layers; returns logits.

    Takes ``(N, 1, 32, 32)``. ReLU and max-pooling stand in for the sigmoid and subsampling of the
    original, as is usual today.

    References:
        LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition",
        Proceedings of the IEEE 1998.

    Example:
        >>> import torch
        >>> LeNet5()(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, classes),
        )  # fmt: skip
