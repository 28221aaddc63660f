"""The corruptions of CIFAR-10-C, at its five severities, generated from clean images.

Fourteen of the fifteen corruptions are implemented; frost is not, since it uses photographs of the authors. The
strengths are those of CIFAR-10-C, meant for 32 × 32 pixels. The published files were generated without a seed, so our
images differ from them, but their distribution is the same, with these exceptions:

- Motion blur and snow use ImageMagick's definition of motion blur, computed here in floating point.
- Elastic transform places pixels exactly, where OpenCV rounds to a 32nd of a pixel.
- Glass blur copies a pixel from a neighbour, as the authors' code does, although it intends to swap the two.
- JPEG is Pillow's, whose libjpeg may be another version.
- Images with one channel, which CIFAR does not have, are treated as grey colour images.

Severities are the authors' judgement of what is harder to recognise. In glass blur and elastic transform they trade
one distortion for another, and in motion blur the third and fourth hardly differ, so the distance from the clean image
does not always grow with severity.

References:
    Hendrycks, Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant_lab.shift import optics

SEVERITIES = (1, 2, 3, 4, 5)
CHUNK = 500  # images at a time, to limit memory
LARGEST_SIDE = 64
ELASTIC_SIZE = 32  # image size that the strengths of elastic transform refer to
LUMINANCE = (0.299, 0.587, 0.114)


@dataclass
class Draws:
    """Random numbers that depend on the image, not on the other images in the batch."""

    key: int  # of the corruption, its severity and the seed
    indices: range  # of the images in their set

    @cached_property
    def _generators(self) -> list[np.random.Generator]:
        # A counter-based generator can start anywhere at no cost: each image has its own 2^128 blocks.
        counters = (index << 128 for index in self.indices)
        return [np.random.Generator(np.random.Philox(key=self.key, counter=counter)) for counter in counters]

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, ``(N, *shape)``."""
        return self._each(lambda generator: generator.standard_normal(shape, dtype=np.float32))

    def uniform(self, *shape: int) -> Tensor:
        """From 0 to 1, ``(N, *shape)``."""
        return self._each(lambda generator: generator.random(shape, dtype=np.float32))

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform, ``(N, *shape)``."""
        return low + (high - low) * self.uniform(*shape)

    def poisson(self, rates: Tensor) -> Tensor:
        """Poisson counts with these rates."""
        given = rates.double().numpy()
        counts = [generator.poisson(rate) for generator, rate in zip(self._generators, given, strict=True)]
        return torch.from_numpy(np.stack(counts)).float()

    def _each(self, draw: Callable[[np.random.Generator], Any]) -> Tensor:
        return torch.from_numpy(np.stack([draw(generator) for generator in self._generators]))


def gaussian_noise(x: Tensor, level: float, draws: Draws) -> Tensor:
    """Electronic noise."""
    return x + level * draws.normal(*x.shape[1:])


def shot_noise(x: Tensor, photons: float, draws: Draws) -> Tensor:
    """Photon noise, with ``photons`` for white."""
    return draws.poisson(x * photons) / photons


def impulse_noise(x: Tensor, share: float, draws: Draws) -> Tensor:
    """Some values become 0 or 1."""
    chance = draws.uniform(*x.shape[1:])
    return torch.where(chance < share, (chance < share / 2).float(), x)


def defocus_blur(x: Tensor, disk: tuple[float, float], _: Draws) -> Tensor:
    """Out of focus: radius and softness of the image of a point."""
    return optics.convolved(x, optics.soft_disk(*disk))


def glass_blur(x: Tensor, glass: tuple[float, int], draws: Draws) -> Tensor:
    """Frosted glass: a Gaussian blur before and after pixels are moved by at most one pixel, several times."""
    sigma, times = glass
    count, channels, size, _ = x.shape
    blur = optics.gaussian_filter(size, sigma, 4.0, "nearest")
    line = torch.arange(size)
    moved = _rounded_down(optics.both_ways(blur, x)).flatten(2)
    inner = (line.unsqueeze(1) >= 2) & (line >= 2)
    for _ in range(times):
        up, left = (draws.uniform(2, size, size) < 0.5).long().mul_(inner).unbind(1)
        places = ((line.unsqueeze(1) - up) * size + line - left).flatten(1).unsqueeze(1)
        moved = moved.gather(2, places.expand(count, channels, -1))
    return optics.both_ways(blur, moved.view_as(x))


def motion_blur(x: Tensor, stroke: tuple[int, float], draws: Draws) -> Tensor:
    """The camera moves sideways: radius and standard deviation of the stroke."""
    return _rounded(optics.motion_blurred(x, *stroke, draws.between(-45, 45)))


def zoom_blur(x: Tensor, farthest: float, _: Draws) -> Tensor:
    """The camera moves towards the object."""
    factors = tuple(float(factor) for factor in np.arange(1, farthest, 0.01))
    return (x.flatten(2) @ optics.zoom_mean(x.shape[-1], factors).T).view_as(x)


def snow(x: Tensor, weather: tuple[float, float, float, float, int, float, float], draws: Draws) -> Tensor:
    """Falling flakes, and a paler image behind them."""
    mean, deviation, zoom, least, radius, sigma, kept = weather
    size = x.shape[-1]
    flakes = mean + deviation * draws.normal(1, size, size)
    if zoom > 1:
        flakes = optics.both_ways(optics.zooming(size, zoom), flakes)
    flakes = _rounded_down(torch.where(flakes < least, 0.0, flakes))
    falling = _rounded(optics.motion_blurred(flakes, radius, sigma, draws.between(-135, -45)))
    luminance = torch.tensor(LUMINANCE if x.shape[1] == 3 else (1.0,))
    grey = torch.einsum("nchw,c->nhw", x, luminance).unsqueeze(1)
    pale = torch.maximum(x, 1.5 * grey + 0.5)
    return kept * x + (1 - kept) * pale + falling + falling.rot90(2, (2, 3))


def fog(x: Tensor, weather: tuple[float, float], draws: Draws) -> Tensor:
    """A cloud, with density and smoothness."""
    density, decay = weather
    size = x.shape[-1]
    whole = 1 << (size - 1).bit_length()
    cloud = optics.plasma(draws.between(-1, 1, whole, whole), decay)[:, None, :size, :size]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + density * cloud) * brightest / (brightest + density)


def brightness(x: Tensor, more: float, _: Draws) -> Tensor:
    """More light: the value grows, hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    brighter = (value + more).clamp(max=1)
    return torch.where(value > 0, x * brighter / value.clamp(min=1e-6), brighter)


def contrast(x: Tensor, kept: float, _: Draws) -> Tensor:
    """Every channel is moved towards its mean."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + kept * (x - mean)


def elastic_transform(x: Tensor, strengths: tuple[float, float, float], draws: Draws) -> Tensor:
    """An affine transform given by three moved points, then a smooth displacement of every pixel."""
    size = x.shape[-1]
    strength, sigma, shear = (size / ELASTIC_SIZE * part for part in strengths)
    moved = optics.affinely_moved(x, draws.between(-shear, shear, 3, 2).double())
    if strength == 0:
        return moved
    smooth = optics.gaussian_filter(size, sigma, 3.0, "reflect")
    across, down = (strength * optics.both_ways(smooth, draws.between(-1, 1, 2, size, size))).unbind(1)
    line = torch.arange(size)
    return optics.sampled(moved.clamp(0, 1), line + across, line.unsqueeze(1) + down, with_edge=True)


def pixelate(x: Tensor, share: float, _: Draws) -> Tensor:
    """Fewer pixels, enlarged again."""
    size = x.shape[-1]
    for resized in (int(size * share), size):
        matrix = optics.box_resampling(x.shape[-1], resized)
        x = _rounded(matrix @ _rounded(x @ matrix.T))
    return x


def jpeg_compression(x: Tensor, quality: int, _: Draws) -> Tensor:
    """JPEG compression."""
    from PIL import Image

    found = []
    for picture in _bytes(x).permute(0, 2, 3, 1).numpy():
        file = BytesIO()
        Image.fromarray(picture if picture.shape[2] == 3 else picture[:, :, 0]).save(file, "JPEG", quality=quality)
        found.append(np.asarray(Image.open(file)).reshape(picture.shape))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 255


# By names of the published files, in the paper's order (noise, blur, weather, digital), with the strength per severity.
CORRUPTIONS: dict[str, tuple[Callable[[Tensor, Any, Draws], Tensor], Sequence[Any]]] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500.0, 250.0, 100.0, 75.0, 50.0)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": (motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "zoom_blur": (zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": (snow, (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95), (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )),
    "fog": (fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (elastic_transform, (
        (0.0, 0.0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96),
    )),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
}  # fmt: skip
NOT_GENERATED = ("frost",)


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """Corrupt images deterministically; shape and dtype are kept.

    Images are ``(N, C, S, S)`` with C of 1 or 3: uint8, or floating point in 0 to 1. Random numbers depend on the seed,
    the corruption, its severity and the index of the image, counted from ``first``, so a set can be corrupted in parts.

    Example:
        >>> grey = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
        >>> corrupt(grey, "brightness", 5)[0, :, 0, 0].tolist()
        [176, 176, 176]
        >>> corrupt(grey, "gaussian_noise", 1)[1:].equal(corrupt(grey[1:], "gaussian_noise", 1, first=1))
        True
    """
    _check(images, name, severity)
    apply, levels = CORRUPTIONS[name]
    key = int.from_bytes(hashlib.blake2b(f"{name} {severity} {seed}".encode(), digest_size=8).digest())
    result = torch.empty_like(images)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK].cpu()
        given = (part.float() / 255 if part.dtype == torch.uint8 else part.float()).contiguous()
        draws = Draws(key, range(first + start, first + start + len(part)))
        worse = apply(given, levels[severity - 1], draws).clamp(0, 1)
        result[start : start + CHUNK] = _bytes(worse) if images.dtype == torch.uint8 else worse
    return result


def _check(images: Tensor, name: str, severity: int) -> None:
    if name not in CORRUPTIONS:
        left_out = "; frost needs its authors' photographs" if name in NOT_GENERATED else ""
        raise ValueError(f"unknown corruption {name!r}: choose from {', '.join(CORRUPTIONS)}{left_out}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be from 1 to 5, got {severity}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images must be uint8, or floating point in 0 to 1, got {images.dtype}")
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1] not in (1, 3) or shape[2] != shape[3] or not 8 <= shape[2] <= LARGEST_SIDE:
        raise ValueError(
            f"images must have shape (N, C, S, S) with C of 1 or 3 and S of 8 to {LARGEST_SIDE}, got {shape}"
        )


def _bytes(x: Tensor) -> Tensor:
    """Rounded down, as published, except values just below a whole number because of rounding errors."""
    return (255 * x + 1e-3).to(torch.uint8)


def _rounded_down(x: Tensor) -> Tensor:
    return _bytes(x.clamp(0, 1)).float() / 255


def _rounded(x: Tensor) -> Tensor:
    return (255 * x.clamp(0, 1)).round() / 255
