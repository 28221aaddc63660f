"""Folders of pictures: what is cut from each, and which classes there are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

from calibrant.files import FileError
from calibrant_lab.data.decoding import PictureError, Pictures, centre, random_box, random_part
from calibrant_lab.data.imagefolder import load_image_folder


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes; train has 3, 4 and 5 pictures, val 2 each, of several kinds and sizes."""
    for label, name in enumerate(["ant", "bee", "cat"]):
        for part, count in (("train", 3 + label), ("val", 2)):
            place = tmp_path / part / name
            place.mkdir(parents=True)
            for k in range(count):
                picture = noise(40 + 5 * k, 50, seed=10 * label + k)
                kind = [".JPEG", ".jpg", ".png"][k % 3]
                (picture.convert("L") if k == 1 else picture).save(place / f"{k}{kind}")
    (tmp_path / "train/ant/notes.txt").write_text("not a picture")
    return tmp_path


def test_pictures_labels_and_views(folder: Path) -> None:
    data = load_image_folder(folder, size=32)
    assert data.classes == 3
    assert data.train.labels.tolist() == [0] * 3 + [1] * 4 + [2] * 5
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    image, label = data.train.dataset[5]
    assert label == 1
    path = folder / "train/bee/2.png"
    expected = np.array(centre(Image.open(path).convert("RGB"), 32)).transpose(2, 0, 1) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    assert np.allclose(image, (expected - mean[:, None, None]) / std[:, None, None], atol=1e-6)
    assert torch.equal(image, data.train.dataset[5][0])
    assert not torch.equal(data.train.augmented[5][0], data.train.augmented[5][0])
    grey = data.test.dataset[1][0] * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1)
    assert torch.allclose(grey[0], grey[2], atol=1e-6)


@pytest.mark.parametrize(
    ("width", "height", "scaled"), [(512, 256, (512, 256)), (300, 500, (256, 426)), (64, 64, (256, 256))]
)
def test_the_centre_is_cut_after_scaling_the_shorter_side(width: int, height: int, scaled: tuple[int, int]) -> None:
    picture = noise(width, height)
    left, top = (scaled[0] - 224) // 2, (scaled[1] - 224) // 2
    expected = np.array(picture.resize(scaled, Image.Resampling.BILINEAR))[top : top + 224, left : left + 224]
    assert np.array_equal(np.array(centre(picture, 224)), expected)


def test_random_parts_have_the_usual_areas_and_shapes() -> None:
    torch.manual_seed(0)
    left, top, right, bottom = np.array([random_box(500, 400) for _ in range(3000)]).T
    assert (left.min(), top.min(), right.max(), bottom.max()) == (0, 0, 500, 400)
    width, height = right - left, bottom - top
    area, ratio = width * height / 200_000, width / height
    assert (area.min(), area.max()) == pytest.approx((0.08, 1), abs=0.03)
    assert (ratio.min(), ratio.max()) == pytest.approx((3 / 4, 4 / 3), abs=0.013)
    # Areas below one half always fit, so that they are uniform there; places are uniform among those that fit.
    assert area[area < 0.5].mean() == pytest.approx(0.29, abs=0.01)
    assert (left / np.maximum(500 - width, 1)).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("size", "box"), [((1000, 10), (493, 0, 506, 10)), ((6, 600), (0, 296, 6, 304)), ((1, 1), (0, 0, 1, 1))]
)
def test_pictures_too_long_for_a_part_give_their_centre(size: tuple[int, int], box: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    boxes = {random_box(*size) for _ in range(50)}
    assert box in boxes
    assert all(right - left <= size[0] and bottom - top <= size[1] for left, top, right, bottom in boxes)


def test_a_random_part_is_that_box_scaled_and_every_other_one_mirrored() -> None:
    picture, mirrored = noise(60, 40), []
    for seed in range(200):
        torch.manual_seed(seed)
        found = np.array(random_part(picture, 24, flip=True))
        torch.manual_seed(seed)
        expected = np.array(picture.crop(random_box(60, 40)).resize((24, 24), Image.Resampling.BILINEAR))
        mirrored.append(np.array_equal(found, expected[:, ::-1]))
        assert mirrored[-1] or np.array_equal(found, expected)
    assert 70 < sum(mirrored) < 130


def test_a_list_chooses_classes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "chosen.txt").write_text("cat\tFelis catus\n\nant\n")
    data = load_image_folder(folder, classes=tmp_path / "chosen.txt")
    assert data.classes == 2
    assert data.train.labels.tolist() == [0] * 3 + [1] * 5


@pytest.mark.parametrize(
    ("content", "token"), [(b"cat\ndog\n", "dog"), (b"cat\ncat\n", "duplicates"), (b"\n", "one"), (b"\xff", "UTF-8")]
)
def test_a_wrong_list_is_named(folder: Path, tmp_path: Path, content: bytes, token: str) -> None:
    (tmp_path / "chosen.txt").write_bytes(content)
    with pytest.raises(FileError, match=rf"chosen\.txt.*{token}"):
        load_image_folder(folder, classes=tmp_path / "chosen.txt")


def test_errors_name_the_folder_or_the_picture(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder"):
        load_image_folder(None, classes=folder / "chosen.txt")
    (folder / "val/dog").mkdir()
    with pytest.raises(FileError, match="dog"):
        load_image_folder(folder)
    (folder / "train/dog").mkdir()
    with pytest.raises(FileError, match=r"train/dog.*\.png"):
        load_image_folder(folder)
    (tmp_path / "none/train/ant").mkdir(parents=True)
    (tmp_path / "none/val").mkdir()
    with pytest.raises(FileError, match=r"none/val.*image-net.*clane9"):
        load_image_folder(tmp_path / "none")


# The two workers of a loader that failed are waited for, five seconds each, when it is collected.
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cut", [0, 300])
def test_a_damaged_picture_is_one_line_even_from_within_a_worker(folder: Path, cut: int, workers: int) -> None:
    path = folder / "train/ant/a  name\nof two lines.jpg"
    path.write_bytes((folder / "train/ant/0.JPEG").read_bytes()[:cut])
    loader = DataLoader(Subset(load_image_folder(folder, size=16).train.augmented, [0, 3]), num_workers=workers)
    with pytest.raises(PictureError) as caught:
        list(loader)
    assert str(caught.value).startswith(str(path).replace("\n", " "))
    assert "\n" not in str(caught.value)


def test_bad_settings_are_refused() -> None:
    for changes in ({"size": 0}, {"std": [1.0, 0.0, 1.0]}, {"mean": [0.5]}):
        settings = {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3} | changes
        with pytest.raises(ValueError, match="mean and std"):
            Pictures([noise(9, 9)], torch.tensor([0]), augment=False, **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 labels"):
        Pictures([noise(9, 9)], torch.tensor([0, 1]), size=8, mean=[0.5] * 3, std=[0.5] * 3, augment=False)
