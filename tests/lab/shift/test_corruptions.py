"""Corruptions: the same every time, as strong as they say, and each as another implementation of it has it."""

import colorsys
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from calibrant_lab.shift import optics
from calibrant_lab.shift.corruptions import CHUNK, CORRUPTIONS, SEVERITIES, corrupt

# Where the severities trade one distortion for another, the distance from the clean image is no measure of them.
TRADING = {"glass_blur", "elastic_transform", "motion_blur"}


def photographs(count: int = 24, channels: int = 3) -> Tensor:
    """Smooth random colours with edges: what blurs change, and neither black nor white."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 6, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic").clamp(0, 1)
    edges = (coarse[:, :1, 0, 0, None, None] * 32 > torch.arange(32.0)).float()
    return (30 + 180 * (0.75 * smooth + 0.25 * edges)).to(torch.uint8)


COLOUR, GREY = photographs(), photographs(channels=1)


def distance(one: Tensor, other: Tensor) -> float:
    return (one.float() - other.float()).square().mean().sqrt().item()


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("images", [COLOUR, GREY], ids=["colour", "grey"])
def test_an_image_is_corrupted_alike_every_time_whatever_its_type_and_company(name: str, images: Tensor) -> None:
    before = images.clone()
    once, again = (corrupt(images, name, 4) for _ in range(2))
    assert once.equal(again)
    assert (once.shape, once.dtype) == (images.shape, torch.uint8)
    assert images.equal(before)
    assert distance(once, images) > 1
    parts = [corrupt(images[start : start + 7], name, 4, first=start) for start in range(0, len(images), 7)]
    # Products of matrices are summed in an order that depends on their size.
    assert (torch.cat(parts).int() - once.int()).abs().max() <= 1
    real = corrupt(images.double() / 255, name, 4)
    assert real.dtype == torch.float64
    assert 0 <= real.min() <= real.max() <= 1
    assert (255 * real - once).abs().max() <= 1.01


def test_chunks_do_not_show() -> None:
    many = GREY[:1].expand(CHUNK + 2, -1, -1, -1)
    assert corrupt(many, "impulse_noise", 5)[-2:].equal(corrupt(many[-2:], "impulse_noise", 5, first=CHUNK))


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in TRADING])
@pytest.mark.parametrize("images", [COLOUR, GREY], ids=["colour", "grey"])
def test_the_distance_from_the_clean_image_grows_with_the_severity(name: str, images: Tensor) -> None:
    distances = [distance(corrupt(images, name, severity), images) for severity in SEVERITIES]
    assert distances == sorted(distances)
    assert distances[4] > 1.3 * distances[0]


def test_noise_is_as_strong_as_published() -> None:
    grey, salt_and_pepper = torch.full((40, 3, 32, 32), 0.4), (0.4**2 + 0.6**2) / 2
    for name, variances in {
        "gaussian_noise": (0.04**2, 0.10**2), "shot_noise": (0.4 / 500, 0.4 / 50),
        "impulse_noise": (0.01 * salt_and_pepper, 0.07 * salt_and_pepper),
    }.items():  # fmt: skip
        found = [(corrupt(grey, name, severity) - 0.4).square().mean().item() for severity in (1, 5)]
        assert found == pytest.approx(variances, rel=0.1)


def test_other_seeds_severities_and_images_have_other_noise() -> None:
    grey = torch.full((2, 1, 32, 32), 0.5)
    drawn = [corrupt(grey, "gaussian_noise", 1), corrupt(grey, "gaussian_noise", 1, seed=1)]
    noise = torch.cat([*drawn, corrupt(grey, "gaussian_noise", 2)]).sub(0.5).flatten(1)
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.15


def test_pixelate_is_pillows_box_filter() -> None:
    image = pytest.importorskip("PIL.Image")
    for severity, side in zip(SEVERITIES, (30, 28, 27, 24, 20), strict=True):
        for given, found in zip(COLOUR[:4], corrupt(COLOUR[:4], "pixelate", severity), strict=True):
            picture = image.fromarray(given.permute(1, 2, 0).numpy())
            small = picture.resize((side, side), image.Resampling.BOX)
            expected = np.asarray(small.resize((32, 32), image.Resampling.BOX)).astype(int)
            assert np.abs(found.permute(1, 2, 0).numpy() - expected).max() <= 1


def test_brightness_keeps_hue_and_saturation() -> None:
    found = corrupt(COLOUR[:1].double() / 255, "brightness", 2)
    for (red, green, blue), after in zip(
        COLOUR[0, :, ::9, ::9].flatten(1).T.tolist(), found[0, :, ::9, ::9].flatten(1).T.tolist(), strict=True
    ):
        hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        assert after == pytest.approx(colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.1)), abs=1e-6)
    assert corrupt(torch.zeros(1, 3, 8, 8), "brightness", 2).unique().item() == pytest.approx(0.1)


def test_defocus_is_a_correlation_with_a_soft_disk() -> None:
    found = corrupt(COLOUR[:1].double() / 255, "defocus_blur", 5)[0, 0].numpy()
    expected = ndimage.correlate(COLOUR[0, 0].numpy() / 255, np.full((3, 3), 1 / 9), mode="mirror")
    assert found == pytest.approx(expected, abs=1e-5)
    # Half a pixel: one point, and what a Gaussian of 0.6 pixels leaves beside it.
    beside = math.exp(-0.5 / 0.6**2)
    assert optics.soft_disk(0.5, 0.6).sum().item() == pytest.approx(1)
    assert optics.soft_disk(1.0, 0.1)[2].tolist() == pytest.approx([0, 0.2, 0.2, 0.2, 0], abs=1e-4)
    assert optics.soft_disk(0.5, 0.6)[1, 1].item() == pytest.approx(1 / (1 + 2 * beside) ** 2)


@pytest.mark.parametrize("border", ["nearest", "reflect"])
@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.92, 6.4])
def test_the_gaussian_filter_is_scipys(border: optics.Border, sigma: float) -> None:
    given = COLOUR[0, 0].double().numpy()
    found = optics.both_ways(optics.gaussian_filter(32, sigma, 3.0, border), COLOUR[:1, :1].float())[0, 0]
    assert found.numpy() == pytest.approx(ndimage.gaussian_filter(given, sigma, mode=border, truncate=3.0), rel=1e-5)


def zoomed_by_scipy(given: npt.NDArray[np.float64], factor: float) -> npt.NDArray[np.float64]:
    kept = math.ceil(32 / factor)
    start = (32 - kept) // 2
    zoomed = ndimage.zoom(given[start : start + kept, start : start + kept], factor, order=1)
    cut = (len(zoomed) - 32) // 2
    return np.asarray(zoomed[cut : cut + 32, cut : cut + 32])


@pytest.mark.parametrize(("severity", "enlargements"), [(1, 7), (5, 26)])
def test_zoom_blur_is_the_mean_of_the_image_and_its_enlargements(severity: int, enlargements: int) -> None:
    given = COLOUR[0, 0].double().numpy() / 255
    factors = np.arange(1, 1.01 + 0.05 * severity, 0.01)
    assert len(factors) == enlargements
    expected = (given + sum(zoomed_by_scipy(given, factor) for factor in factors)) / (enlargements + 1)
    found = corrupt(COLOUR[:1].double() / 255, "zoom_blur", severity)[0, 0]
    assert found.numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("with_edge", [True, False])
def test_sampling_between_pixels_is_scipys(with_edge: bool) -> None:
    columns, rows = 40 * torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(1)) - 4
    found = optics.sampled(COLOUR[:1, :1].float(), columns.double(), rows.double(), with_edge=with_edge)[0, 0]
    expected = ndimage.map_coordinates(
        COLOUR[0, 0].double().numpy(), [rows[0], columns[0]], order=1, mode="reflect" if with_edge else "mirror"
    )
    assert found.numpy() == pytest.approx(expected, abs=0.01)


def test_three_corners_move_as_told() -> None:
    marked = torch.zeros(1, 1, 32, 32)
    marked[0, 0, [26, 6, 6], [26, 26, 6]] = torch.tensor([1.0, 2.0, 3.0])
    moved = optics.affinely_moved(marked, torch.tensor([[[1, 2], [0, 0], [-3, 1]]]).double())
    assert [round(moved[0, 0, row, column].item(), 4) for row, column in ((28, 27), (6, 26), (7, 3))] == [1, 2, 3]


@pytest.mark.parametrize("angle", [-45.0, -20.0, 0.0, 33.0, 45.0])
def test_motion_blur_takes_whole_steps_in_its_direction(angle: float) -> None:
    given = COLOUR[0, 0].double().numpy()
    weights = np.exp(-0.5 * (np.arange(13) / 2) ** 2)
    expected = np.zeros((32, 32))
    for row in range(32):
        for column in range(32):
            for step, weight in enumerate(weights / weights.sum()):
                x = column + math.ceil(step * math.cos(math.radians(angle)) - 0.5)
                y = row + math.ceil(step * math.sin(math.radians(angle)) - 0.5)
                expected[row, column] += weight * given[min(max(y, 0), 31), min(max(x, 0), 31)]
    found = optics.motion_blurred(COLOUR[:1, :1].float(), 6, 2.0, torch.tensor([angle]))
    assert found[0, 0].numpy() == pytest.approx(expected, abs=1e-3)


def test_glass_copies_pixels_from_at_most_one_row_and_column_back() -> None:
    found = corrupt(COLOUR, "glass_blur", 1)  # whose blur is too narrow to reach a neighbour
    assert found[:, :, :2].equal(COLOUR[:, :, :2])
    assert found[..., :2].equal(COLOUR[..., :2])
    inner = found[..., 2:, 2:]
    sources = [COLOUR[..., 2 - up : 32 - up, 2 - left : 32 - left] for up in (0, 1) for left in (0, 1)]
    is_from = torch.stack([(inner == source).all(1) for source in sources])
    assert is_from.any(0).all()
    only = is_from.sum(0) == 1
    shares = (is_from & only).sum((1, 2, 3)) / only.sum()
    assert shares.tolist() == pytest.approx([0.25] * 4, abs=0.02)


def test_a_cloud_is_made_of_displaced_midpoints() -> None:
    size, decay = 8, 1.75
    noise = 2 * torch.rand(1, size, size, generator=torch.Generator().manual_seed(0)) - 1
    cloud = {(0, 0): 0.0}
    step, strength = size, 1.0
    while step > 1:
        half = step // 2
        diagonal = [(-half, -half), (-half, half), (half, -half), (half, half)]
        straight = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for starts, around in (([(half, half)], diagonal), ([(0, half), (half, 0)], straight)):
            for top, left in starts:
                for y in range(top, size, step):
                    for x in range(left, size, step):
                        corners = [cloud[(y + down) % size, (x + right) % size] for down, right in around]
                        cloud[y, x] = sum(corners) / 4 + strength * noise[0, y, x].item()
        step, strength = half, strength / decay**2
    expected = np.array([[cloud[y, x] for x in range(size)] for y in range(size)])
    expected = (expected - expected.min()) / np.ptp(expected)
    assert optics.plasma(noise, decay)[0].numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("images", "name", "severity", "token"),
    [
        (COLOUR, "frost", 1, "'frost'.*photographs"),
        (COLOUR, "rain", 1, "'rain'.*gaussian_noise"),
        (COLOUR, "fog", 0, "severity.*got 0"),
        (COLOUR[:, :2], "fog", 1, r"\(24, 2, 32, 32\)"),
        (COLOUR[..., :30], "fog", 1, r"\(24, 3, 32, 30\)"),
        (COLOUR.long(), "fog", 1, "int64"),
    ],
)
def test_bad_input_is_explained(images: Tensor, name: str, severity: int, token: str) -> None:
    with pytest.raises((ValueError, TypeError), match=token):
        corrupt(images, name, severity)
