"""Validation first, the held-out part from the rest, the same for every method of a seed."""

import pytest
import torch
from torch.utils.data import TensorDataset

from calibrant_lab.data.images import Images, ImageSamples
from calibrant_lab.data.samples import Data, DatasetSamples
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.split import make_loaders, split

NLL, ESD = configure("digits"), configure("digits", "esd")


def parts_of(configuration: Configuration, *, validates: bool = True) -> tuple[torch.Tensor | None, ...]:
    return split(configuration, 1000, validates=validates, minimum_samples=3)


def test_the_parts_are_disjoint_and_validation_is_the_same_with_and_without_a_held_out_part() -> None:
    plain, held, reduced = map(parts_of, (NLL, ESD, NLL.replaced({"reduced_split": True})))
    assert sizes_of(held) == [810, 90, 100]
    assert torch.cat([part for part in held if part is not None]).sort().values.equal(torch.arange(1000))
    assert sizes_of(plain) == [900, None, 100]
    assert sizes_of(reduced) == [810, None, 100]
    assert [same(plain[2], held[2]), same(reduced[0], held[0])] == [True, True]
    assert not same(held[2], parts_of(ESD.replaced({"seed": 1}))[2])
    assert sizes_of(parts_of(NLL, validates=False)) == [1000, None, None]


def sizes_of(parts: tuple[torch.Tensor | None, ...]) -> list[int | None]:
    return [None if part is None else len(part) for part in parts]


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    assert one is not None
    assert other is not None
    return one.equal(other)


@pytest.mark.parametrize(("fraction", "token"), [(0.0001, "0 for validation"), (0.9999, "0 for training")])
def test_a_part_without_samples_is_refused(fraction: float, token: str) -> None:
    with pytest.raises(ValueError, match=token):
        parts_of(NLL.replaced({"validation_fraction": fraction}))


def rows(count: int, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(count).float().unsqueeze(1) + shift, torch.arange(count) % 3


def test_batches_have_the_sizes_of_the_configuration() -> None:
    configuration = ESD.replaced({"batch_size": 100, "calibration_batch_size": 50})
    loaders = make_loaders(configuration, Data(rows(1437), rows(360)), minimum_samples=3)
    assert loaders.calibration is not None
    sizes = [[len(labels) for _, labels in part] for part in (loaders.train, loaders.calibration)]
    assert sizes == [[100] * 11 + [64], [43, 43, 43]]
    assert [sum(len(labels) for _, labels in part) for part in (loaders.validation, loaders.test)] == [144, 360]
    assert {name: loaders.description[name] for name in ("train", "calibration", "validation")} == {
        "train": 1164, "calibration": 129, "validation": 144,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["rows", "data set", "images"])
def test_held_out_batches_have_nearly_equal_sizes_and_the_same_samples_for_every_method(kind: str) -> None:
    x, y = rows(1437)
    given = {
        "rows": (x, y), "data set": DatasetSamples(TensorDataset(x, y), labels=y),
        "images": ImageSamples(Images(torch.zeros(1437, 1, 2, 2, dtype=torch.uint8), y), crop_padding=1, flip=True),
    }  # fmt: skip
    seen = []
    for method in ("esd", "mmce", "sb-ece", "loop"):
        loader = make_loaders(configure("digits", method), Data(given[kind], rows(360)), minimum_samples=3).calibration
        assert loader is not None
        torch.manual_seed(0)
        passes = [[labels.tolist() for _, labels in loader] for _ in range(2)]
        assert [sorted(map(len, one)) for one in passes] == [[64, 65], [64, 65]]  # 129 in batches of 128
        assert passes[0] != passes[1]
        seen.append(passes)
    assert all(one == seen[0] for one in seen)


def test_the_fingerprint_tells_data_apart() -> None:
    made = [
        Data(rows(90), rows(30)), Data(rows(90), rows(30)), Data(rows(90, 1), rows(30)), Data(rows(90), rows(30, 1)),
        Data(rows(90), rows(30), validation=rows(30)),
    ]  # fmt: skip
    found = [make_loaders(NLL, data, minimum_samples=3).description["fingerprint"] for data in made]
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_small_test_rows_are_predicted_in_larger_batches_and_large_ones_are_not() -> None:
    for features, size in ((20, 1638), (1024, 32), (4096, 32)):
        x, y = torch.zeros(2000, features), torch.arange(2000) % 2
        data = Data((x, y), (x, y), classes=2)
        loaders = make_loaders(NLL.replaced({"batch_size": 32}), data, minimum_samples=3)
        assert len(next(iter(loaders.test))[1]) == size
        assert len(next(iter(loaders.train))[1]) == 32
        assert len(loaders.targets["test"]) == 2000
