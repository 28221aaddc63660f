"""Small images kept in memory as bytes, and batched, cropped, flipped and normalised as tensors."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant_lab.data.batching import Batches, generator_of_pass

EVALUATION_BATCH = 1000


class Images(NamedTuple):
    """Labelled images of one size."""

    pixels: Tensor  # uint8, (N, C, H, W); channels_last avoids a copy of the whole set
    labels: Tensor  # int64, (N,)


class ImageData(NamedTuple):
    """A data set of images; validation and calibration data are split off the training part later."""

    train: Images
    test: Images
    classes: int


class ImageSamples:
    """Images in memory as a recipe's :class:`~calibrant_lab.data.samples.Samples`, batched by :class:`ImageBatches`."""

    def __init__(
        self,
        images: Images,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        crop_padding: int = 0,
        flip: bool = False,
    ) -> None:
        self.images = images
        self.labels = images.labels
        self._plain = partial(ImageBatches, images, mean=mean, std=std)
        self._augmented = partial(self._plain, shuffle=True, crop_padding=crop_padding, flip=flip)

    def batches(
        self, size: int, rows: Tensor | None = None, *, training: bool = False, even: bool = False
    ) -> "ImageBatches":
        """Batches of the rows; shuffled, cropped and flipped for training."""
        # Without augmentation only memory limits the size; larger batches need fewer calls.
        if training:
            return self._augmented(size, indices=rows, even=even)
        return self._plain(EVALUATION_BATCH, indices=rows, even=even)

    def content(self) -> Iterable[Tensor]:
        """Labels and pixels."""
        return self.labels, self.images.pixels


class ImageBatches(Batches):
    """A loader of images in memory that yields ``(images, labels)``, without Python work per image.

    Images are float32 ``(pixels / 255 - mean) / std`` of shape ``(B, C, H, W)`` in the ``channels_last`` memory format,
    the fastest for convolutions; labels are int64. ``mean`` and ``std`` have one value, or one per channel.
    ``crop_padding`` pads each image with this many black pixels on every side and crops the original size at random;
    ``flip`` flips each image horizontally with probability 0.5. Order, crops and flips of a pass come from
    :func:`~calibrant_lab.data.batching.generator_of_pass`.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        *,
        indices: Tensor | None = None,
        shuffle: bool = False,
        even: bool = False,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        crop_padding: int = 0,
        flip: bool = False,
    ) -> None:
        pixels, self._labels = images
        if pixels.dtype != torch.uint8 or pixels.dim() != 4 or self._labels.shape != pixels.shape[:1]:
            raise ValueError(
                "images must be uint8 of shape (N, C, H, W) with one label each, got "
                f"{pixels.dtype} of shape {tuple(pixels.shape)} with labels of shape {tuple(self._labels.shape)}"
            )
        if crop_padding < 0:
            raise ValueError(f"crop_padding must be 0 or more, got {crop_padding}")
        super().__init__(len(pixels), batch_size, self._augmented, indices=indices, shuffle=shuffle, even=even)
        self.crop_padding = crop_padding
        self.flip = flip
        # (N, H, W, C)
        self._pixels = pixels.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        self._mean, self._std = self._spread("mean", mean), self._spread("std", std)
        if not (self._std > 0).all():
            raise ValueError(f"std must be positive, got {list(std)}")

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # All random choices of the pass are made here, not when the first batch is requested.
        generator = generator_of_pass() if self._shuffle or self.crop_padding or self.flip else None
        order = self._order(generator)
        places = 2 * self.crop_padding + 1
        corners = torch.randint(places, (len(order), 2), generator=generator) if self.crop_padding else None
        flipped = torch.randint(2, (len(order),), generator=generator).bool() if self.flip else None
        choices = (repeat(None) if one is None else self._parts(one) for one in (corners, flipped))
        return map(self._augmented, self._parts(order), *choices)

    def _augmented(
        self, rows: Tensor, corners: Tensor | None = None, flipped: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        pixels = self._pixels.index_select(0, rows)
        if corners is not None:
            pixels = _cropped(pixels, corners, self.crop_padding)
        if flipped is not None:
            which = flipped.nonzero().squeeze(1)
            pixels.index_copy_(0, which, pixels.index_select(0, which).flip(2))
        values = pixels.flatten(1).float().div_(255).sub_(self._mean).div_(self._std)
        return values.view_as(pixels).permute(0, 3, 1, 2), self._labels.index_select(0, rows)

    def _spread(self, name: str, values: Sequence[float]) -> Tensor:
        """One value per pixel and channel, which is much faster than broadcasting one per channel."""
        _, height, width, channels = self._pixels.shape
        if len(values) not in (1, channels):
            raise ValueError(f"{name} must have 1 value, or one per channel ({channels}), got {len(values)}")
        return torch.tensor(values, dtype=torch.float32).expand(height, width, channels).flatten()


def _cropped(pixels: Tensor, corners: Tensor, padding: int) -> Tensor:
    """Pad images of ``(B, H, W, C)`` and crop each at its own ``(top, left)``."""
    count, height, width, channels = pixels.shape
    padded = F.pad(pixels, (0, 0) + 4 * (padding,))
    rows, columns = padded.shape[1:3]
    # A cropped row is contiguous in memory, so one gather of such rows is enough.
    top, left = corners.unsqueeze(2).unbind(1)
    row = torch.arange(count).unsqueeze(1) * rows + top + torch.arange(height)
    starts = row * columns + left
    runs = padded.view(-1).as_strided((padded.numel() // channels - width + 1, width * channels), (channels, 1))
    return runs.index_select(0, starts.flatten()).view_as(pixels)
