"""Two processes with half the batch each train as one with the whole batch."""

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from calibrant.training.lightning_data import InterleavedDataModule
from tests.ranks import free_port, prepared_processes
from tests.training.lightning_runs import (
    QUIET,
    callback_result,
    exact_classifier,
    exact_data,
    result,
    run_on_two_ranks,
    sizes,
    trainer,
)

pytestmark = [pytest.mark.slow, *QUIET]  # tests/test_distributed.py has quick ones
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = tmp_path_factory.mktemp("ranks")
    port = free_port()
    server = prepared_processes()
    processes = [server.Process(target=run_on_two_ranks, args=(rank, port, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Results:
    results = {}
    for name in ("sgd", "adamw", "temperature"):
        run = trainer(tmp_path_factory.mktemp("alone"), max_epochs=2)
        module = exact_classifier(name)
        run.fit(module, datamodule=exact_data(**sizes(name, ranks=1)))
        tested = run.test(module, datamodule=exact_data(batch_size=8), verbose=False)[0]
        results[name] = result(run) | {"test": tested}
    results["callback"] = callback_result(trainer(tmp_path_factory.mktemp("alone"), max_epochs=3), rank=0, ranks=1)
    return results


@pytest.mark.parametrize("name", ["sgd", "adamw", "temperature"])
def test_two_ranks_end_with_the_weights_of_one_process(ranks: list[Results], alone: Results, name: str) -> None:
    assert alone[name]["step"] == (12 if name == "temperature" else 6)
    if name == "temperature":
        assert alone[name]["history"][-1]["train_temperature"] != 1
    for rank in ranks:
        torch.testing.assert_close(rank[name]["weights"], alone[name]["weights"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adamw", "temperature"])
def test_two_ranks_log_what_one_process_logs(ranks: list[Results], alone: Results, name: str) -> None:
    # 37 samples are validated and tested: each counts once, though two ranks cannot divide them.
    for rank in ranks:
        assert rank[name]["test"] == pytest.approx(alone[name]["test"], rel=1e-6)
        for entry, expected in zip(rank[name]["history"], alone[name]["history"], strict=True):
            assert entry == pytest.approx(expected, rel=1e-9)


def test_a_module_with_the_callback_ends_the_same_on_both_ranks(ranks: list[Results], alone: Results) -> None:
    first, second = (rank["callback"] for rank in ranks)
    expected = alone["callback"]
    assert expected["logged"]["train_temperature"] != 1
    assert first["temperature"] == second["temperature"] == pytest.approx(expected["temperature"], rel=1e-9)
    assert first["compared"] == second["compared"] == pytest.approx(expected["compared"]) != 0
    torch.testing.assert_close(first["weights"], second["weights"], rtol=0, atol=0)
    torch.testing.assert_close(first["weights"], expected["weights"], rtol=0, atol=1e-9)
    assert first["logged"] == second["logged"] == pytest.approx(expected["logged"], rel=1e-6)


def test_batchnorm_needs_nothing_special(ranks: list[Results]) -> None:
    # Both forward passes happen in one of DistributedDataParallel's, which gives all ranks rank 0's statistics at its
    # beginning: what they differ by at the end is the last step.
    weights = [{k: v for k, v in rank["batchnorm"]["weights"].items() if "running" not in k} for rank in ranks]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_ranks_resume_with_their_own_random_numbers_and_all_sums(ranks: list[Results]) -> None:
    for rank in ranks:
        expected, resumed = rank["batchnorm"], rank["resumed"]
        weights = {k: v for k, v in expected["weights"].items() if "running" not in k}
        torch.testing.assert_close({k: resumed["weights"][k] for k in weights}, weights, rtol=0, atol=1e-6)
        for entry, uninterrupted in zip(resumed["history"], expected["history"], strict=True):
            assert entry == pytest.approx(uninterrupted, rel=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one_process(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def batches(rank: int, of: int) -> list[torch.Tensor]:
        module = InterleavedDataModule(TensorDataset(torch.arange(100)), batch_size=30 // of)
        monkeypatch.setattr(module, "_place", lambda: (of, rank))
        return [batch.train[0] for batch in module.train_dataloader()]

    together = zip(*(batches(rank, world) for rank in range(world)), strict=True)
    for parts, whole in zip(together, batches(0, 1), strict=True):
        assert sorted(torch.cat(parts).tolist()) == sorted(whole.tolist())
