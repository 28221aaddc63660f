"""ImageBatches against plain loops over images, and its promise about randomness."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from calibrant_lab.data.batching import generator_of_pass
from calibrant_lab.data.images import ImageBatches, Images

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def images(count: int, channels: int = 3, height: int = 12, width: int = 10) -> Images:
    """Random pixels, none of them black, so that padding shows; the label is the number of the image."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count))


def passed(loader: ImageBatches) -> tuple[Tensor, Tensor]:
    """All images and labels of one pass."""
    x, y = zip(*loader, strict=True)
    return torch.cat(x), torch.cat(y)


@pytest.mark.parametrize("stored", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 3])
def test_normalised_to_the_last_bit(channels: int, stored: torch.memory_format) -> None:
    pixels, labels = images(7, channels)
    stored_so = Images(pixels.contiguous(memory_format=stored), labels)
    loader = ImageBatches(stored_so, 3, mean=MEAN[:channels], std=STD[:channels])
    expected = pixels.float() / 255
    expected = (expected - torch.tensor(MEAN[:channels]).view(-1, 1, 1)) / torch.tensor(STD[:channels]).view(-1, 1, 1)
    x, y = passed(loader)
    assert torch.equal(x, expected)
    assert torch.equal(y, labels)
    assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch, _ in loader)
    assert next(iter(loader))[0].stride(1) == 1


def test_crops_and_flips_equal_a_loop_over_images() -> None:
    pixels, _ = images(23)
    torch.manual_seed(1)
    x, y = passed(ImageBatches(Images(pixels, torch.arange(23)), 5, shuffle=True, crop_padding=4, flip=True))
    torch.manual_seed(1)
    generator = generator_of_pass()
    order = torch.randperm(23, generator=generator)
    corners = torch.randint(9, (23, 2), generator=generator).tolist()
    flips = torch.randint(2, (23,), generator=generator).tolist()
    assert torch.equal(y, order)
    for found, index, (top, left), flip in zip(x, order.tolist(), corners, flips, strict=True):
        padded = torch.zeros(3, 20, 18)
        padded[:, 4:16, 4:14] = pixels[index].float() / 255
        expected = padded[:, top : top + 12, left : left + 10]
        assert torch.equal(found, expected.flip(2) if flip else expected)


@pytest.mark.parametrize(("shuffle", "crop", "flip"), [(True, 0, False), (False, 2, False), (False, 0, True)])
def test_a_pass_draws_one_number_when_it_begins(shuffle: bool, crop: int, flip: bool) -> None:
    loader = ImageBatches(images(40), 8, shuffle=shuffle, crop_padding=crop, flip=flip)
    before = torch.get_rng_state()
    torch.empty((), dtype=torch.int64).random_()
    after_a_draw = torch.get_rng_state()
    torch.set_rng_state(before)
    busy: list[torch.Tensor] = []
    for x, _ in loader:
        if not busy:
            assert torch.equal(torch.get_rng_state(), after_a_draw)
        busy.append(x)
        torch.rand(100)  # what others draw during a pass changes nothing
    assert not torch.equal(torch.cat(busy), passed(loader)[0])
    torch.set_rng_state(before)
    assert torch.equal(torch.cat(busy), passed(loader)[0])
    assert torch.equal(torch.get_rng_state(), after_a_draw)
    passed(ImageBatches(images(40), 8))  # without chance nothing is drawn
    assert torch.equal(torch.get_rng_state(), after_a_draw)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 20])
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_are_cut_as_a_dataloader_cuts_them(shuffle: bool, batch_size: int) -> None:
    indices = torch.arange(39, -1, -2)
    loader = ImageBatches(images(40), batch_size, indices=indices, shuffle=shuffle)
    peer: Any = DataLoader(Subset(TensorDataset(images(40).labels), indices.tolist()), batch_size)
    found = [y for _, y in loader]
    expected = [y for (y,) in peer]
    assert len(loader) == len(peer) == len(found)
    assert [len(y) for y in found] == [len(y) for y in expected]
    if not shuffle:
        assert torch.equal(torch.cat(found), torch.cat(expected))
    labels = torch.cat(found).tolist()
    assert len(set(labels)) == len(labels)
    assert set(labels) == set(indices.tolist())


@pytest.mark.parametrize(
    ("changes", "token"),
    [
        ({"images": Images(torch.zeros(2, 1, 4, 4), torch.zeros(2))}, "uint8"),
        ({"images": Images(images(3).pixels, torch.arange(2))}, "labels"),
        ({"batch_size": 0}, "batch_size"),
        ({"mean": [0.5, 0.5]}, "mean"),
        ({"std": [1.0, 0.0, 1.0]}, "std"),
        ({"crop_padding": -1}, "crop_padding"),
        ({"indices": torch.tensor([0, 10])}, "indices"),
        ({"indices": torch.tensor([], dtype=torch.int64)}, "samples"),
        ({"indices": torch.ones(10, dtype=torch.bool)}, "whole numbers"),
    ],
)
def test_errors(changes: dict[str, Any], token: str) -> None:
    settings: dict[str, Any] = {"images": images(10), "batch_size": 4} | changes
    with pytest.raises((ValueError, TypeError), match=token):
        ImageBatches(settings.pop("images"), settings.pop("batch_size"), **settings)
