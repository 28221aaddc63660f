"""Small sets made for the tests, and where the real ones are when they are there."""

from pathlib import Path

import pytest
import torch

from calibrant_lab.data.images import Images

SHARED = Path(__file__).parents[3] / "../shared/data"


def real(name: str) -> Path:
    """A real data set beside the repository; the test is skipped where there is none."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {name} beside the repository")
    return path


def images(count: int, channels: int = 3, height: int = 12, width: int = 10) -> Images:
    """Random pixels, none of them black, so that padding shows; the label is the number of the image."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count))
