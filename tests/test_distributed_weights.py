"""Sample weights and labels of two ranks equal those of one process."""

import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import calibrant as cal
from calibrant.losses import checks
from calibrant.losses import pairs as pairs_module
from calibrant.losses.pairs import ViewedObjective
from tests.ranks import on_two_ranks
from tests.test_distributed import batch, gradients, network

SYNCED: dict[str, ViewedObjective] = {
    "esd": cal.ESDLoss(root=False),
    "esd class-wise": cal.ESDLoss(root=False, view="class-wise"),
    "esd multi-label": cal.ESDLoss(root=False, view="multi-label"),
    "mmce": cal.MMCELoss(),
    "mmce unbiased": cal.MMCELoss(unbiased=True, root=False),
    "mmce multi-label": cal.MMCELoss(view="multi-label"),
    "ece": cal.ECELoss(),
    "ece class-wise": cal.ECELoss(view="class-wise"),
    "ece multi-label": cal.ECELoss(view="multi-label"),
}
SHARES = [100, 60, 2, 0]
Results = dict[str, tuple[Tensor, list[Tensor]]]


def weights(kind: str, share: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    w = torch.rand(200, generator=generator, dtype=torch.float64)
    if kind == "zeros":
        w = torch.where(torch.rand(200, generator=generator) < 0.3, 0.0, w)
    if kind == "one rank":  # rank 0 gives none
        w[:share] = 1
    if kind == "even by rank":  # on each rank equal weights change nothing; together they do
        w[:share], w[share:] = 1, 3
    return w


KINDS = ["uneven", "zeros", "one rank", "even by rank"]


def targets(objective: ViewedObjective) -> tuple[Tensor, Tensor]:
    """Target and mask, of labels where the view wants them."""
    _, y, mask = batch()
    if objective.view != "multi-label":
        return y, mask
    labels = (y[:, None] + torch.arange(5)) % 3 == 0
    return labels.long().masked_fill((torch.arange(1000) % 11 == 0).reshape(200, 5), -100), mask[:, None] | ~labels


def too_small_is_an_error(rank: int) -> bool:
    """Two samples on rank 0, none on rank 1: padding is not ignoring."""
    try:
        cal.ESDLoss()(torch.randn(2 - 2 * rank, 5), torch.zeros(2 - 2 * rank, dtype=torch.long))
    except ValueError as error:
        return "ESD needs at least 3 samples, got 2" in str(error)
    return False


def all_ignored_is_zero(rank: int) -> bool:
    """All samples of both ranks are ignored, by label, mask or weight; then only those of rank 0."""
    x, y = torch.randn(6, 5, requires_grad=True), torch.arange(6) % 5
    fine = True
    for objective in (cal.ESDLoss(), cal.MDCALoss(), cal.AvUCLoss(), cal.DCALoss()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = objective(x, torch.full((6,), -100)) + objective(x, y, mask=torch.zeros(6, dtype=torch.bool))
        (gradient,) = torch.autograd.grad(value, x)
        fine = fine and bool(value == 0 and (gradient == 0).all()) and len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fine = fine and bool(objective(x, torch.full((6,), -100) if rank == 0 else y).isfinite())
    return fine


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(network())
    x, _, _ = batch()
    results: Results = {}
    for share in SHARES:
        mine = slice(0, share) if rank == 0 else slice(share, None)
        for name, objective in SYNCED.items():
            y, mask = targets(objective)
            for kind in KINDS:
                w = None if kind == "one rank" and rank == 0 else weights(kind, share)[mine]
                value = objective(model(x[mine]), y[mine], mask[mine], w)
                results[f"{name} {kind} {share}"] = value.detach(), gradients(model, value)
    # As on an accelerator, where no value is read.
    blind = mock.Mock(return_value=False)
    mine = slice(0, 60) if rank == 0 else slice(60, None)
    with mock.patch.object(pairs_module, "readable", blind), mock.patch.object(checks, "readable", blind):
        for name, objective in SYNCED.items():
            y, mask = targets(objective)
            for kind in ("uneven", "none"):
                w = None if kind == "none" else weights(kind, 60)[mine]
                value = objective(model(x[mine]), y[mine], mask[mine], w)
                results[f"{name} {kind} blind"] = value.detach(), gradients(model, value)
    results["too small"] = torch.tensor(too_small_is_an_error(rank)), []
    results["all ignored"] = torch.tensor(all_ignored_is_zero(rank)), []
    torch.save(results, Path(folder) / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(work, str(folder))
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SYNCED)
def test_weights_of_two_ranks_equal_one_process(ranks: list[Results], name: str, kind: str, share: int) -> None:
    model: nn.Module = network()
    objective = SYNCED[name]
    y, mask = targets(objective)
    expected = objective(model(batch()[0]), y, mask, weights(kind, share))
    expected_gradients = gradients(model, expected)
    assert expected > 0
    for rank in ranks:
        value, parameter_gradients = rank[f"{name} {kind} {share}"]
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(parameter_gradients, expected_gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["uneven", "none"])
@pytest.mark.parametrize("name", SYNCED)
def test_it_does_not_matter_whether_values_are_read(ranks: list[Results], name: str, kind: str) -> None:
    model: nn.Module = network()
    objective = SYNCED[name]
    y, mask = targets(objective)
    expected = objective(model(batch()[0]), y, mask, None if kind == "none" else weights(kind, 60))
    expected_gradients = gradients(model, expected)
    for rank in ranks:
        value, parameter_gradients = rank[f"{name} {kind} blind"]
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(parameter_gradients, expected_gradients, rtol=1e-12, atol=1e-12)


def test_a_global_batch_that_is_too_small_is_an_error(ranks: list[Results]) -> None:
    assert all(rank["too small"][0] for rank in ranks)


def test_a_global_batch_that_is_all_ignored_is_zero(ranks: list[Results]) -> None:
    assert all(rank["all ignored"][0] for rank in ranks)
