"""Two ranks with half the batch each equal one process with the whole batch."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import calibrant as cal
from tests.ranks import on_two_ranks

# test_distributed_weights.py is the quick one.
pytestmark = pytest.mark.slow

SYNCED: dict[str, nn.Module] = {
    "esd": cal.ESDLoss(root=False),
    "esd rooted": cal.ESDLoss(),
    "esd class-wise": cal.ESDLoss(root=False, view="class-wise"),
    "mmce": cal.MMCELoss(),
    "mmce unbiased": cal.MMCELoss(unbiased=True, root=False),
    "mmce class-wise": cal.MMCELoss(view="class-wise"),
    "mmce weighted": cal.WeightedMMCELoss(),
    "soft-binned ece": cal.SoftBinnedECELoss(),
    "ece": cal.ECELoss(),
    "avuc": cal.AvUCLoss(0.9),
    "soft avuc": cal.SoftAvUCLoss(),
    "dca": cal.DCALoss(),
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


def logits_of(model: nn.Module, rank: int) -> Tensor:
    x, _, _ = batch()
    logits: Tensor = model(x[:60] if rank == 0 else x[60:]).detach()
    return logits


def y_of(rank: int) -> Tensor:
    _, y, _ = batch()
    return y[:60] if rank == 0 else y[60:]


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


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(network())
    x, y, _ = batch()
    results: dict[str, tuple[Tensor, list[Tensor]]] = {}
    for share in SHARES:
        mine = slice(0, share) if rank == 0 else slice(share, None)
        for name, objective in SYNCED.items():
            value = objective(model(x[mine]), y[mine], mask=masked(share)[mine])
            results[f"{name} {share}"] = value.detach(), gradients(model, value)
        local = cal.DCALoss(sync=False)(model(x[100 * rank :][:100]), y[100 * rank :][:100])
        results["local"] = local.detach(), gradients(model, local)
    compiled = torch.compile(SYNCED["esd"], backend="aot_eager")
    value = compiled(model(x[:90] if rank == 0 else x[90:]), y[:90] if rank == 0 else y[90:])
    results["compiled"] = value.detach(), gradients(model, value)
    results["threshold"] = torch.tensor(cal.AvUCLoss().fit_threshold(logits_of(model, rank), y_of(rank)).threshold), []
    for name, state in updated_states(logits_of(model, rank), y_of(rank)).items():
        results[name] = state, []
    results["failure"] = torch.tensor(float(fails_and_recovers(rank))), []
    torch.save(results, Path(folder) / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[Tensor, list[Tensor]]]]:
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(work, str(folder))
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", SYNCED)
def test_two_ranks_equal_one_process(
    ranks: list[dict[str, tuple[Tensor, list[Tensor]]]], name: str, share: int
) -> None:
    model = network()
    x, y, _ = batch()
    expected = SYNCED[name](model(x), y, mask=masked(share))
    expected_gradients = gradients(model, expected)
    assert expected > 0
    for rank in ranks:
        value, parameter_gradients = rank[f"{name} {share}"]
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(parameter_gradients, expected_gradients, rtol=1e-12, atol=1e-12)


def test_without_sync_each_rank_goes_alone(ranks: list[dict[str, tuple[Tensor, list[Tensor]]]]) -> None:
    assert ranks[0]["local"][0] != ranks[1]["local"][0]


def test_a_compiled_objective_gathers_too(ranks: list[dict[str, tuple[Tensor, list[Tensor]]]]) -> None:
    model = network()
    x, y, _ = batch()
    expected = gradients(model, SYNCED["esd"](model(x), y))
    for rank in ranks:
        torch.testing.assert_close(rank["compiled"][1], expected, rtol=1e-12, atol=1e-12)


def test_the_threshold_of_avuc_comes_from_all_ranks(ranks: list[dict[str, tuple[Tensor, list[Tensor]]]]) -> None:
    x, y, _ = batch()
    expected = cal.AvUCLoss().fit_threshold(network()(x), y).threshold
    for rank in ranks:
        assert rank["threshold"][0].item() == pytest.approx(expected, rel=1e-6)


def test_updates_from_held_out_data_are_from_all_ranks(ranks: list[dict[str, tuple[Tensor, list[Tensor]]]]) -> None:
    x, y, _ = batch()
    for name, state in updated_states(network()(x).detach(), y).items():
        for rank in ranks:
            torch.testing.assert_close(rank[name][0], state)


def test_bad_input_on_one_rank_is_an_error_on_all(ranks: list[dict[str, tuple[Tensor, list[Tensor]]]]) -> None:
    assert all(rank["failure"][0] for rank in ranks)
