"""Building blocks of corruptions: blurs, resampling, warps and clouds, for a whole batch at once.

Images are float32 ``(N, C, S, S)`` in 0 to 1. Separable operations are written as one ``(S, S)`` matrix, applied from
both sides.
"""

import math
from functools import cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor

Border = Literal["nearest", "reflect"]  # repeats the last pixel, or mirrors the image including that pixel


def both_ways(matrix: Tensor, images: Tensor) -> Tensor:
    """Apply a linear map to the columns and to the rows."""
    return matrix @ images @ matrix.T


@cache
def gaussian_filter(size: int, sigma: float, truncate: float, border: Border) -> Tensor:
    """The matrix of a one-dimensional Gaussian filter, truncated at ``truncate`` standard deviations."""
    if sigma == 0:
        return torch.eye(size)
    filtered = ndimage.gaussian_filter1d(np.eye(size), sigma, axis=0, mode=border, truncate=truncate)
    return torch.from_numpy(filtered).float()


@cache
def box_resampling(size: int, resized: int) -> Tensor:
    """The ``(resized, size)`` matrix of Pillow's box filter: the mean of pixels with centres in the window."""
    scale = size / resized
    centres = (torch.arange(resized, dtype=torch.double).unsqueeze(1) + 0.5) * scale
    away = (torch.arange(size, dtype=torch.double) + 0.5 - centres) / max(scale, 1.0)
    inside = ((away > -0.5) & (away <= 0.5)).double()
    return (inside / inside.sum(1, keepdim=True)).float()


@cache
def zooming(size: int, factor: float) -> Tensor:
    """The matrix that enlarges the centre of a line, by linear interpolation, to the size of the whole.

    The centre consists of as many whole pixels as needed. Its first and last pixel become the first and last of the
    enlarged line, which is cropped to size.
    """
    kept = math.ceil(size / factor)
    start = (size - kept) // 2
    enlarged = ndimage.zoom(np.eye(size)[start : start + kept], (factor, 1), order=1, mode="nearest")
    cut = (len(enlarged) - size) // 2
    return torch.from_numpy(enlarged[cut : cut + size]).float()


@cache
def zoom_mean(size: int, factors: tuple[float, ...]) -> Tensor:
    """The ``(S², S²)`` matrix of the mean of an image and its enlargements: one product instead of dozens."""
    total = torch.eye(size * size)
    for factor in factors:
        matrix = zooming(size, factor)
        total += torch.kron(matrix, matrix)
    return total / (len(factors) + 1)


def convolved(images: Tensor, kernel: Tensor) -> Tensor:
    """Convolve each channel with the same kernel; the border is mirrored without the last pixel."""
    size = images.shape[-1]
    padded = F.pad(images, (kernel.shape[0] // 2,) * 4, mode="reflect")
    result = torch.zeros_like(images)
    # A sum of shifted images: with few channels twice as fast as torch's convolution.
    for row, weights in enumerate(kernel.tolist()):
        for column, weight in enumerate(weights):
            result.add_(padded[:, :, row : row + size, column : column + size], alpha=weight)
    return result


@cache
def soft_disk(radius: float, blur: float) -> Tensor:
    """A disk of pixels, its edge softened by a Gaussian of 3 × 3 pixels: the image of a point out of focus."""
    reach = math.floor(radius) + 1
    place = torch.arange(-reach, reach + 1)
    disk = (place.square() + place.square().unsqueeze(1) <= radius**2).float()
    line = torch.exp(-0.5 * (torch.arange(-1, 2) / blur) ** 2)
    soft = torch.outer(line, line) / line.sum() ** 2
    return F.conv2d(disk[None, None] / disk.sum(), soft[None, None], padding=1)[0, 0]


def motion_blurred(images: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Each pixel becomes a mean of those behind it, weighted by half a Gaussian; each image has its own direction.

    As defined by ImageMagick: ``2 radius + 1`` whole-pixel steps; the border is repeated.
    """
    size = images.shape[-1]
    angle = torch.deg2rad(degrees.double())
    pixels = images.flatten(2)
    weights = torch.exp(-0.5 * (torch.arange(2 * radius + 1, dtype=torch.double) / sigma) ** 2)
    blurred = torch.zeros_like(pixels)
    for step, weight in enumerate((weights / weights.sum()).tolist()):
        across, down = (torch.ceil(step * part - 0.5).long() for part in (angle.cos(), angle.sin()))
        columns, rows = ((torch.arange(size) + by.unsqueeze(1)).clamp(0, size - 1) for by in (across, down))
        places = (rows.unsqueeze(2) * size + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
        blurred.add_(pixels.gather(2, places.expand_as(pixels)), alpha=weight)
    return blurred.view_as(images)


def sampled(images: Tensor, columns: Tensor, rows: Tensor, *, with_edge: bool) -> Tensor:
    """Interpolate images linearly at columns and rows of shape ``(N, S, S)``; mirrored at the border.

    Positions are in pixels from the centre of the first; ``with_edge`` repeats the last pixel in the mirror image.
    """
    last = images.shape[-1] - 1
    scale = 2 / (last + 1) if with_edge else 2 / last
    grid = torch.stack((columns, rows), 3).sub_(last / 2).mul_(scale).float()
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=not with_edge)


def affinely_moved(images: Tensor, displaced: Tensor) -> Tensor:
    """Affine transform that moves three corners of a central square by ``(N, 3, 2)`` columns and rows."""
    size = images.shape[-1]
    low, high = size // 2 - size // 3, size // 2 + size // 3
    corners = torch.tensor([[high, high], [high, low], [low, low]], dtype=torch.double)
    ones = torch.ones(len(images), 3, 1, dtype=torch.double)
    # The inverse map gives the source of each pixel.
    back = torch.linalg.solve(torch.cat((corners + displaced, ones), 2), corners.expand(len(images), 3, 2))
    line = torch.arange(size, dtype=torch.double)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    places = torch.stack((columns, rows, torch.ones_like(rows)), 2).flatten(0, 1) @ back
    columns, rows = places.view(-1, size, size, 2).unbind(3)
    return sampled(images, columns, rows, with_edge=False)


def plasma(noise: Tensor, decay: float) -> Tensor:
    """A cloud in 0 to 1: random midpoint displacement on a periodic square.

    The noise is uniform in -1 to 1, its side a power of two; at each halving it is divided by the square of the decay.
    """
    size = noise.shape[-1]
    cloud = torch.zeros_like(noise)
    step, strength = size, 1.0
    while step > 1:
        half = step // 2
        at, between = slice(0, None, step), slice(half, None, step)
        corners = cloud[:, at, at]
        pairs = corners + corners.roll(-1, 2)
        middles = (pairs + pairs.roll(-1, 1)) / 4 + strength * noise[:, between, between]
        cloud[:, between, between] = middles
        for axis, place in ((2, (slice(None), at, between)), (1, (slice(None), between, at))):
            around = corners + corners.roll(-1, axis) + middles + middles.roll(1, 3 - axis)
            cloud[place] = around / 4 + strength * noise[place]
        step, strength = half, strength / decay**2
    lowest, highest = cloud.amin((1, 2), keepdim=True), cloud.amax((1, 2), keepdim=True)
    return (cloud - lowest) / (highest - lowest)
