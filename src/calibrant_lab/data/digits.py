"""scikit-learn's handwritten digits: embedded, tiny, and with noise to make them harder."""

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant_lab.data.images import ImageData, Images

TEST_IMAGES = 360


def load_digits(noise: float = 0.3) -> ImageData:
    """1,437 training and 360 test digits, 32×32 pixels in one channel.

    ``noise`` is the standard deviation of Gaussian noise added to the 8×8 pixels in [0, 1] before they are enlarged.
    Without it nearly every prediction is correct, and networks are not over-confident. Noise and split are fixed.
    """
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise must be at least 0, got {noise}")
    from sklearn.datasets import load_digits as embedded

    data = embedded()
    pixels = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    pixels += noise * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
    enlarged = F.interpolate(pixels, size=(32, 32), mode="bilinear").clamp(0, 1).mul(255).round().to(torch.uint8)
    labels: Tensor = torch.from_numpy(data.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return ImageData(Images(enlarged[train], labels[train]), Images(enlarged[test], labels[test]), classes=10)
