"""Two ranks equal one process with the whole batch, with masks, ignored labels and weights."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import calibrant as cal
from calibrant.losses.base import PairObjective
from tests.cases import WEIGHTED, values_unread
from tests.ranks import on_two_ranks

Results = dict[str, tuple[Tensor, list[Tensor]]]

# Objectives that take no weights, and one of those that do, which WEIGHTED has.
MASKED: dict[str, nn.Module] = {
    "esd": cal.ESDLoss(root=False),
    "avuc": cal.AvUCLoss(0.9),
    "soft avuc": cal.SoftAvUCLoss(),
    "mdca": cal.MDCALoss(),
    "ece-kde": cal.ECEKDELoss(0.1),
    "ece-kde top-label": cal.ECEKDELoss(0.1, view="top-label"),
}
# How many of the samples rank 0 gets: half, an uneven share, so few that it could not go alone, none.
SHARES = [100, 60, 2, 0]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)).double()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64) * 4
    y = torch.randint(5, (200,), generator=generator)
    mask = torch.rand(200, generator=generator) < 0.8
    return x, y, mask


def masked(rank_0_share: int) -> Tensor:
    """All of rank 0's samples count, and most of rank 1's: the ranks differ in whether they have a mask."""
    mask = batch()[2].clone()
    mask[:rank_0_share] = True
    return mask


def gradients(model: nn.Module, value: Tensor) -> list[Tensor]:
    model.zero_grad()
    value.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def updated_states(logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """State of the losses that held-out data update."""
    states: dict[str, Tensor] = {}
    for loss in (cal.AdaFocalLoss(), cal.CALSLoss(margin=1.0, rho_every=2)):
        state = loss.update(logits, target).update(2 * logits, target).state_dict()
        states |= {f"{type(loss).__name__} {key}": value for key, value in state.items()}
    bandwidth = cal.ECEKDELoss().fit_bandwidth(logits, target).bandwidth
    return states | {"bandwidth": torch.tensor(bandwidth)}


def fails_and_recovers(rank: int) -> bool:
    """Rank 1 is given NaN: both ranks raise, and the next batch is again one batch."""
    generator = torch.Generator().manual_seed(rank)
    logits, target = torch.randn(20, 5, generator=generator), torch.arange(20) % 5
    expected = ValueError if rank == 1 else RuntimeError
    for objective in (cal.ESDLoss(root=False), cal.MDCALoss(), cal.AvUCLoss()):
        before = objective(logits, target)
        bad = torch.full_like(logits, torch.nan) if rank == 1 else logits
        try:
            objective(bad, target)
        except expected:
            pass
        else:
            return False
        if objective(logits, target) != before:
            return False
    for loss in (cal.AdaFocalLoss(), cal.CALSLoss()):
        try:
            loss.update(bad, target)
        except expected:
            loss.update(logits, target)
        else:
            return False
    try:
        cal.AvUCLoss().fit_threshold(bad, target)
    except expected:
        return bool(cal.AvUCLoss().fit_threshold(logits, target).threshold > 0)
    return False


def weights(kind: str, share: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    w = 1 + torch.rand(200, generator=generator, dtype=torch.float64)
    if kind == "zeros":
        w = torch.where(torch.rand(200, generator=generator) < 0.3, 0.0, w)
    if kind == "one rank":  # rank 0 gives none
        w[:share] = 1
    if kind == "even by rank":
        w[:share], w[share:] = 1, 3
    return w


KINDS = ["uneven", "zeros", "one rank", "even by rank"]


def targets(objective: PairObjective) -> tuple[Tensor, Tensor]:
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
        return "at least 3" in str(error)
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
        fine = fine and bool(value == 0 and (gradient == 0).all()) and len(caught) == 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fine = fine and bool(objective(x, torch.full((6,), -100) if rank == 0 else y).isfinite())
    return fine


def work(rank: int, folder: str, slowly: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(network())
    results: Results = {}
    (slow_work if slowly else quick_work)(rank, model, results)
    torch.save(results, Path(folder) / f"rank{rank}.pt")


def part(rank: int, share: int) -> slice:
    return slice(0, share) if rank == 0 else slice(share, None)


def slow_work(rank: int, model: nn.Module, results: Results) -> None:
    x, y, _ = batch()
    for share in SHARES:
        mine = part(rank, share)
        for name, objective in MASKED.items():
            value = objective(model(x[mine]), y[mine], mask=masked(share)[mine])
            results[f"{name} {share}"] = value.detach(), gradients(model, value)
    local = cal.DCALoss(sync=False)(model(x[part(rank, 100)]), y[part(rank, 100)])
    results["local"] = local.detach(), gradients(model, local)
    compiled = torch.compile(MASKED["esd"], backend="aot_eager")
    value = compiled(model(x[part(rank, 90)]), y[part(rank, 90)])
    results["compiled"] = value.detach(), gradients(model, value)
    held_out = model(x[part(rank, 60)]).detach(), y[part(rank, 60)]
    results["threshold"] = torch.tensor(cal.AvUCLoss().fit_threshold(*held_out).threshold), []
    results |= {name: (state, []) for name, state in updated_states(*held_out).items()}
    results["failure"] = torch.tensor(float(fails_and_recovers(rank))), []


def quick_work(rank: int, model: nn.Module, results: Results) -> None:
    x, _, _ = batch()
    for name, objective in WEIGHTED.items():
        y, mask = targets(objective)
        for share in SHARES:
            mine = part(rank, share)
            for kind in KINDS:
                w = None if kind == "one rank" and rank == 0 else weights(kind, share)[mine]
                value = objective(model(x[mine]), y[mine], mask[mine], w)
                results[f"{name} {kind} {share}"] = value.detach(), gradients(model, value)
        mine = part(rank, 60)
        with values_unread():
            for kind in ("uneven", "none"):
                w = None if kind == "none" else weights(kind, 60)[mine]
                value = objective(model(x[mine]), y[mine], mask[mine], w)
                results[f"{name} {kind} blind"] = value.detach(), gradients(model, value)
    results["too small"] = torch.tensor(too_small_is_an_error(rank)), []
    results["all ignored"] = torch.tensor(all_ignored_is_zero(rank)), []


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return results_of(tmp_path_factory, True)


@pytest.fixture(scope="module")
def weighted_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return results_of(tmp_path_factory, False)


def results_of(tmp_path_factory: pytest.TempPathFactory, slowly: bool) -> list[Results]:
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(work, str(folder), slowly)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def assert_same(ranks: list[Results], name: str, objective: nn.Module, *given: Tensor | None) -> None:
    """Each rank has the value and gradient of one process with the whole batch."""
    model = network()
    expected = objective(model(batch()[0]), *given)
    expected_gradients = gradients(model, expected)
    assert expected > 0
    for rank in ranks:
        torch.testing.assert_close(rank[name][0], expected.detach(), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(rank[name][1], expected_gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_two_ranks_equal_one_process(
    weighted_ranks: list[Results], name: str, kind: str, share: int
) -> None:
    y, mask = targets(WEIGHTED[name])
    assert_same(weighted_ranks, f"{name} {kind} {share}", WEIGHTED[name], y, mask, weights(kind, share))


@pytest.mark.parametrize("kind", ["uneven", "none"])
@pytest.mark.parametrize("name", WEIGHTED)
def test_it_does_not_matter_whether_values_are_read(weighted_ranks: list[Results], name: str, kind: str) -> None:
    y, mask = targets(WEIGHTED[name])
    w = None if kind == "none" else weights(kind, 60)
    assert_same(weighted_ranks, f"{name} {kind} blind", WEIGHTED[name], y, mask, w)


def test_a_global_batch_that_is_too_small_is_an_error(weighted_ranks: list[Results]) -> None:
    assert all(rank["too small"][0] for rank in weighted_ranks)


def test_a_global_batch_that_is_all_ignored_is_zero(weighted_ranks: list[Results]) -> None:
    assert all(rank["all ignored"][0] for rank in weighted_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", MASKED)
def test_two_ranks_equal_one_process(ranks: list[Results], name: str, share: int) -> None:
    assert_same(ranks, f"{name} {share}", MASKED[name], batch()[1], masked(share))


@pytest.mark.slow
def test_without_sync_each_rank_goes_alone(ranks: list[Results]) -> None:
    assert ranks[0]["local"][0] != ranks[1]["local"][0]


@pytest.mark.slow
def test_a_compiled_objective_gathers_too(ranks: list[Results]) -> None:
    assert_same(ranks, "compiled", MASKED["esd"], batch()[1])


@pytest.mark.slow
def test_what_is_fitted_or_updated_comes_from_all_ranks(ranks: list[Results]) -> None:
    x, y, _ = batch()
    logits = network()(x).detach()
    expected = updated_states(logits, y) | {
        "threshold": torch.tensor(cal.AvUCLoss().fit_threshold(logits, y).threshold)
    }
    for name, state in expected.items():
        for rank in ranks:
            torch.testing.assert_close(rank[name][0], state)


@pytest.mark.slow
def test_bad_input_on_one_rank_is_an_error_on_all(ranks: list[Results]) -> None:
    assert all(rank["failure"][0] for rank in ranks)
