"""Small sets made for the tests."""

import torch

from calibrant_lab.data.images import Images


def images(count: int, channels: int = 3, height: int = 12, width: int = 10) -> Images:
    """Random pixels, none of them black, so that padding shows; the label is the number of the image."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count))
