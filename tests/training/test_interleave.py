"""One pass of the train loader, the calibration loader cycled, and exactly where it was after a resume."""

import io
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from calibrant.training import CalibrationWarning, interleave
from calibrant.training.interleave import (
    InterleavedLoader,
    Passes,
    random_state,
    require_parts_for_ranks,
    set_random_state,
)
from tests.ranks import free_port, on_two_ranks

Drawn = list[tuple[list[int], list[int] | None]]


class Noisy(Dataset[Tensor]):
    """Every sample is its index plus random digits of torch, Python and NumPy."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        noise = int(torch.randint(1000, ())) + 10**3 * random.randrange(1000) + 10**6 * np.random.randint(1000)  # noqa: NPY002, S311
        return torch.tensor(index + 1000 * noise)


class Unsized(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.randperm(10))


def loaders(workers: int = 0, **options: Any) -> InterleavedLoader:
    common: dict[str, Any] = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    return interleave(DataLoader(Noisy(23), 4, **common), DataLoader(Noisy(11), 4, **common), **options)


def draw(batches: Iterator[Any], count: int) -> Drawn:
    """Batches as lists; after each the loop draws random numbers of its own, as dropout does."""
    drawn: Drawn = []
    for _, (train, held) in zip(range(count), batches, strict=False):
        drawn.append((train.tolist(), None if held is None else held.tolist()))
        torch.rand(3)
        random.random()  # noqa: S311
    return drawn


def endless(both: InterleavedLoader) -> Iterator[Any]:
    while True:
        yield from both


def indices(batch: Tensor) -> list[int]:
    return (batch % 1000).tolist()


def test_a_pass_is_a_pass_of_the_train_loader_and_has_its_length() -> None:
    both = loaders()
    train = [index for batch in both for index in indices(batch.train)]
    assert len(both) == 6
    assert sorted(train) == list(range(23))


def test_the_calibration_loader_is_cycled_reshuffled_and_goes_on_in_the_next_pass() -> None:
    both = interleave(DataLoader(TensorDataset(torch.arange(20)), 4), DataLoader(Noisy(12), 4, shuffle=True))
    held = [index for _ in range(3) for batch in both for index in indices(batch.calibration)]
    passes = [held[start : start + 12] for start in range(0, 60, 12)]
    assert len(held) == 60
    assert all(sorted(one) == list(range(12)) for one in passes)
    assert len({tuple(one) for one in passes}) == 5


def test_batches_too_small_for_the_objective_are_left_out() -> None:
    both = interleave(DataLoader(TensorDataset(torch.arange(40)), 4), DataLoader(Noisy(10), 4), minimum_samples=3)
    assert [len(batch.calibration) for batch in both] == [4] * 10
    both = interleave(DataLoader(TensorDataset(torch.arange(40)), 4), DataLoader(Noisy(11), 4), minimum_samples=3)
    assert [len(batch.calibration) for batch in both] == [4, 4, 3] * 3 + [4]


@pytest.mark.parametrize(
    "batch",
    [
        {"name": "x", "input_ids": torch.zeros(2, 5)},
        [torch.zeros(2, 1), torch.zeros(2)],
        ("x", {"deep": (torch.tensor(1.0), torch.zeros(2))}),
        ([torch.zeros(1, 8, 8)] * 5, torch.zeros(2)),  # images of various sizes: the target counts
    ],
)
def test_a_batch_of_any_structure_is_counted(batch: Any) -> None:
    assert next(iter(interleave([1], [batch], minimum_samples=2))).calibration is batch
    with pytest.raises(ValueError, match="at least 3"):
        next(iter(interleave([1], [batch])))


def test_calibration_at_every_kth_step_counts_across_passes() -> None:
    both = interleave(range(3), range(10), calibration_every=2)
    assert [batch.calibration for _ in range(3) for batch in both] == [0, None, 1, None, 2, None, 3, None, 4]


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("done", [0, 6, 12])
def test_a_resumed_loader_goes_on_as_if_nothing_had_happened(done: int, workers: int) -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    first = loaders(workers, calibration_every=2)
    stream = endless(first)
    draw(stream, done)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    expected = draw(stream, 9)

    torch.manual_seed(99)
    file.seek(0)
    resumed = loaders(workers, calibration_every=2)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    again = draw(endless(resumed), 9)
    if workers == 0:
        assert again == expected
    else:  # the order is the same; what persistent workers draw cannot be put back in their second pass
        assert [plain_indices(both) for both in again] == [plain_indices(both) for both in expected]


def plain_indices(both: tuple[list[int], list[int] | None]) -> list[list[int] | None]:
    return [None if part is None else [index % 1000 for index in part] for part in both]


def test_generators_given_to_the_loaders_are_put_back_too() -> None:
    def made() -> InterleavedLoader:
        shared, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
        sampler = RandomSampler(range(11), generator=own)
        return interleave(
            DataLoader(Noisy(23), 4, shuffle=True, generator=shared), DataLoader(Noisy(11), 4, sampler=sampler)
        )

    first = made()
    stream = endless(first)
    draw(stream, 6)
    state = first.state_dict()
    expected = draw(stream, 9)
    resumed = made()
    resumed.load_state_dict(state)
    assert draw(endless(resumed), 9) == expected


def test_a_state_that_is_loaded_is_saved_again_as_it_was() -> None:
    first = loaders()
    draw(iter(first), 2)
    state = first.state_dict()
    torch.rand(5)
    resumed = loaders()
    resumed.load_state_dict(state)
    assert repr(resumed.state_dict()) == repr(state)


def test_a_state_from_within_a_pass_continues_with_the_next() -> None:
    first, resumed = loaders(), loaders()
    draw(iter(first), 2)
    resumed.load_state_dict(first.state_dict())
    assert sorted(index for batch in resumed for index in indices(batch.train)) == list(range(23))


def test_a_distributed_sampler_reshuffles_without_being_told() -> None:
    data = TensorDataset(torch.arange(16))
    sampler: Callable[[], DistributedSampler[Any]] = lambda: DistributedSampler(data, num_replicas=1, rank=0)  # noqa: E731
    both = interleave(DataLoader(data, 8, sampler=sampler()), DataLoader(data, 16, sampler=sampler()))
    first, second = ([batch.train[0].tolist() for batch in both] for _ in range(2))
    held = [batch.calibration[0].tolist() for batch in both]
    assert first != second
    assert held[0] != held[1]


def plain(length: int = 8) -> DataLoader[Any]:
    return DataLoader(Noisy(length), 4, shuffle=True)


def shared_out(length: int = 8, replicas: int = 2, rank: int = 0) -> DataLoader[Any]:
    return DataLoader(Noisy(length), 4, sampler=DistributedSampler(Noisy(length), replicas, rank))


SEPARATE: dict[str, Callable[[], Any]] = {
    "a distributed sampler": shared_out,
    "a list": lambda: [torch.zeros(4)],
    "a stream": lambda: DataLoader(Unsized(), 4),
    "a batch sampler over one": lambda: DataLoader(
        Noisy(8), batch_sampler=BatchSampler(DistributedSampler(Noisy(8), 2, 0), 4, drop_last=False)
    ),
}
REPEATED: dict[str, Callable[[], Any]] = {
    "shuffled": plain,
    "in order": lambda: DataLoader(Noisy(8), 4),
    "weighted": lambda: DataLoader(Noisy(8), 4, sampler=WeightedRandomSampler([1.0] * 8, 8)),
}


@pytest.mark.parametrize("kind", [*SEPARATE, *REPEATED])
def test_loaders_that_give_every_process_the_same_are_refused(kind: str) -> None:
    part = (SEPARATE | REPEATED)[kind]()
    for name, parts in (("train", (part, shared_out())), ("calibration", (shared_out(), part))):
        if kind in SEPARATE:
            require_parts_for_ranks(interleave(*parts))
            continue
        with pytest.raises(ValueError, match=f"the {name} loader"):
            require_parts_for_ranks(interleave(*parts))
        require_parts_for_ranks(interleave(*parts, same_samples_on_every_rank=True))


def interleave_on_a_rank(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    with pytest.raises(ValueError, match="the calibration loader"):
        interleave(shared_out(rank=rank), plain())
    with pytest.raises(ValueError, match="the train loader"):
        interleave(plain(), None)
    assert len(interleave(plain(), plain(), same_samples_on_every_rank=True)) == 2
    assert len(interleave([1], None)) == 1
    assert len(interleave(shared_out(rank=rank), shared_out(rank=rank))) == 1
    found_itself = DataLoader(Noisy(8), 4, sampler=DistributedSampler(Noisy(8)))
    assert len(interleave(found_itself, found_itself)) == 1


@pytest.mark.slow
def test_interleave_refuses_them_where_there_are_several_processes() -> None:
    port = free_port()
    on_two_ranks(interleave_on_a_rank, port)
    assert len(interleave(plain(), plain())) == 2  # one process


def test_leaving_a_pass_early_begins_a_new_one() -> None:
    both = interleave(range(4), range(4))
    for _ in both:
        break
    assert [batch.train for batch in both] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("train", "calibration", "options", "error", "message"),
    [
        ([1], [1], {"calibration_every": 0}, ValueError, "calibration_every"),
        ([], [1], {}, ValueError, "train loader"),
        ([1], [], {}, ValueError, "calibration loader"),
        (iter([1]), [1], {}, TypeError, "train loader"),
        ([1], 3, {}, TypeError, "calibration loader.* int"),
    ],
)
def test_bad_loaders_say_why(train, calibration, options, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        interleave(train, calibration, **options)


def test_the_state_of_the_random_numbers_comes_back() -> None:
    torch.rand(1), random.gauss(0, 1), np.random.randn()  # noqa: NPY002 (leaves half a pair of normals)
    state = random_state()

    def drawn() -> list[float]:
        return [torch.rand(1).item(), random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand()]  # noqa: NPY002, S311

    expected = drawn()
    set_random_state(state)
    assert drawn() == expected


def test_a_handful_of_held_out_samples_is_warned_about() -> None:
    data = TensorDataset(torch.arange(40.0))
    train, message = DataLoader(Subset(data, range(3, 40)), 10), "^3 held-out"
    with pytest.warns(CalibrationWarning, match=message):
        interleave(train, DataLoader(Subset(data, [0, 1, 2]), 3))
    three = SubsetRandomSampler([0, 1, 2])
    with pytest.warns(CalibrationWarning, match=message):
        interleave(train, DataLoader(data, 3, sampler=three))
    with pytest.warns(CalibrationWarning, match=message):
        interleave(train, DataLoader(data, batch_sampler=BatchSampler(three, 3, drop_last=False)))
    with pytest.warns(CalibrationWarning, match=message):
        interleave(train, DataLoader(Subset(data, [0, 1, 2]), 3, sampler=RandomSampler(range(3), True, 100)))


def test_samples_of_all_ranks_count() -> None:
    data = TensorDataset(torch.arange(40.0))
    twelve = Subset(data, range(12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler: DistributedSampler[Any] = DistributedSampler(twelve, 4, 0)
        interleave(DataLoader(Subset(data, range(12, 40)), 10), DataLoader(twelve, 3, sampler=sampler))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_drawn_again_up_to_its_place_and_leaves_random_numbers_alone(workers: int) -> None:
    def stream() -> Passes:
        return Passes(DataLoader(Noisy(10), 4, shuffle=True, num_workers=workers), minimum=3, seed=3)

    whole = stream()
    drawn, places = [], []
    before = random_state()
    for _ in range(5):
        places.append(whole.state_dict())
        drawn.append(whole.next_batch())
    assert torch.equal(random_state()["torch"], before["torch"])
    assert len({tuple(batch.tolist()) for batch in drawn}) == 5
    for start in (1, 2, 4):
        resumed = stream()
        resumed.load_state_dict(places[start])
        torch.rand(3)
        assert [resumed.next_batch().tolist() for _ in drawn[start:]] == [batch.tolist() for batch in drawn[start:]]
