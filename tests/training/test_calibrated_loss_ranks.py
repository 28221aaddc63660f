"""Two ranks with half of every batch agree with one process that has the whole."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from calibrant.training import CalibratedLoss
from tests.ranks import on_two_ranks
from tests.training.batches import with_settings


def batch(step: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + seed)
    x = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    return x, (x[:, :3] + torch.randn(60, 3, generator=generator, dtype=torch.float64)).argmax(1)


def trained(rank: int | None) -> dict[str, object]:
    """Train a few steps and finish, on every second sample where there is a rank."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), last := nn.Linear(16, 3)).double()
    last.weight.data *= 20  # over-confident from the start
    model = network if rank is None else DistributedDataParallel(network)
    rows = slice(None) if rank is None else slice(rank, None, 2)
    calibrated = with_settings(CalibratedLoss(model, every=2), patience=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    temperatures = []
    for step in range(12):
        (x, y), (x_held_out, y_held_out) = batch(step, 0), batch(step, 1)
        loss = calibrated(x[rows], y[rows], x_held_out[rows], y_held_out[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        temperatures.append(calibrated.temperature)
    x, y = batch(99, 2)
    finished = calibrated.finish([(x[rows], y[rows])])
    return {
        "weights": [weights.detach().clone() for weights in network.parameters()],
        "temperatures": torch.tensor([*temperatures, finished.temperature], dtype=torch.float64),
        "samples": finished.held_out.samples,
    }


def on_a_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    torch.save(trained(rank), folder / f"{rank}.pt")


@pytest.mark.slow  # test_distributed.py has quick ones
def test_two_ranks_agree_with_one_process(tmp_path: Path) -> None:
    on_two_ranks(on_a_rank, tmp_path)
    alone = trained(None)
    assert alone["temperatures"][:-1].max() > 1  # type: ignore[index]
    for rank in range(2):
        together = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert together["samples"] == alone["samples"] == 60
        assert torch.allclose(together["temperatures"], alone["temperatures"], rtol=1e-9)  # type: ignore[arg-type]
        for mine, whole in zip(together["weights"], alone["weights"], strict=True):  # type: ignore[call-overload]
            assert torch.allclose(mine, whole, rtol=1e-9, atol=1e-11)
