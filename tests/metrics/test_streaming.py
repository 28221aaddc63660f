"""Metrics fed in batches, on one rank and on two, equal those of all samples at once."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from calibrant import metrics
from calibrant.metrics.binned import CONVENTIONS, ConventionName
from tests.ranks import on_two_ranks

pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
from calibrant.metrics import streaming

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(500, 6, generator=GENERATOR)
TARGET = torch.randint(6, (500,), generator=GENERATOR)


def made() -> dict[str, tuple[Any, float]]:
    """Fresh metrics, and what they must give for all samples."""
    given: Any = {"logits": LOGITS, "target": TARGET}
    return {
        "ece": (streaming.StreamingECE(), metrics.ece(**given)),
        "ece torchmetrics": (
            streaming.StreamingECE(12, "torchmetrics"),
            metrics.ece(bins=12, convention="torchmetrics", **given),
        ),
        "mce": (streaming.StreamingECE(norm=math.inf), metrics.mce(convention="paper", **given)),
        "gap": (streaming.StreamingGap(), metrics.gap(**given)),
        "class-wise": (streaming.StreamingClasswiseECE(6), metrics.classwise_ece(**given)),
        "esd": (streaming.StreamingESD(), metrics.esd(**given)),
        "ks": (streaming.StreamingKS(), metrics.ks_error(**given)),
    }


def batches(indices: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return [(LOGITS[part], TARGET[part]) for part in indices.split(size)]


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("size", [1, 64, 500])
@pytest.mark.parametrize("name", made())
def test_batches_equal_the_whole(name: str, size: int) -> None:
    metric, expected = made()[name]
    for logits, target in batches(torch.randperm(500, generator=torch.Generator().manual_seed(size)), size):
        metric.update(logits, target)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-9, abs=1e-14)
    metric.reset()
    metric.update(LOGITS, TARGET)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_binned_metrics_keep_constant_memory_and_sorted_ones_four_bytes_a_sample() -> None:
    ece, esd = streaming.StreamingECE(takes="confidence"), streaming.StreamingESD(takes="confidence")
    before = len(pickle.dumps(ece.metric_state))
    generator = torch.Generator().manual_seed(1)
    for _ in range(1000):
        z = torch.rand(7, generator=generator)
        ece.update(z, z > 0.5)
        esd.update(z, z > 0.5)
    assert len(pickle.dumps(ece.metric_state)) == before
    keys = esd.metric_state["keys"]
    assert isinstance(keys, list)
    assert sum(part.untyped_storage().nbytes() for part in keys) == 4 * 7000
    assert len(keys) <= 20


def test_probabilities_and_confidence_are_taken_on_request() -> None:
    p = LOGITS.softmax(1)
    by_class = streaming.StreamingECE(takes="probabilities")
    by_class.update(p, TARGET)
    by_pair = streaming.StreamingECE(takes="confidence")
    by_pair.update(p.max(1).values, p.argmax(1) == TARGET)
    assert by_class.compute() == by_pair.compute()
    with pytest.raises(ValueError, match="takes"):
        streaming.StreamingECE(takes="anything")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 classes, got 6"):
        streaming.StreamingClasswiseECE(3).update(LOGITS, TARGET)
    with pytest.raises(ValueError, match="sum to 1"):
        by_class.update(LOGITS.abs().clamp(0, 1), TARGET)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_probabilities_on_the_edges_of_bins_fall_where_they_fall_in_memory(
    convention: ConventionName, kind: torch.dtype
) -> None:
    p = torch.eye(3, dtype=kind).repeat(40, 1) * torch.linspace(0, 1, 120, dtype=kind).mul(20).round().div(20)[:, None]
    p[:, 1] += 1 - p.sum(1)
    target = torch.randint(3, (120,), generator=torch.Generator().manual_seed(2))
    rule: Any = {"bins": 10, "convention": convention}
    of_classes, top = streaming.StreamingClasswiseECE(3, takes="probabilities", **rule), streaming.StreamingECE(
        takes="probabilities", **rule
    )  # fmt: skip
    for part in torch.arange(120).split(50):
        of_classes.update(p[part], target[part])
        top.update(p[part], target[part])
    given: Any = {"probabilities": p, "target": target}
    assert of_classes.compute().item() == pytest.approx(metrics.classwise_ece(**given, **rule), rel=1e-12)
    assert top.compute().item() == pytest.approx(metrics.ece(**given, **rule), rel=1e-12)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("name", made())
def test_before_the_first_sample_there_is_no_value(name: str) -> None:
    assert made()[name][0].compute().isnan()


def test_a_batch_too_short_for_esd_costs_nothing() -> None:
    esd = streaming.StreamingESD()
    esd.update(LOGITS[:-2], TARGET[:-2])
    assert esd(LOGITS[-2:], TARGET[-2:]).isnan()
    assert esd.compute().item() == pytest.approx(metrics.esd(logits=LOGITS, target=TARGET), rel=1e-9)


@pytest.mark.parametrize("name", made())
def test_sums_keep_their_precision(name: str) -> None:
    metric, expected = made()[name]
    metric.update(LOGITS, TARGET)
    metric.half().set_dtype(torch.float16)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-9, abs=1e-14)


def on_rank(rank: int, folder: str, share: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    mine = torch.arange(500)[:share] if rank == 0 else torch.arange(500)[share:]
    values = {}
    for name, (metric, _) in made().items():
        for logits, target in batches(mine, 60) if len(mine) else []:
            metric.update(logits, target)
        values[name] = metric.compute().item()
    torch.save(values, f"{folder}/{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("share", [250, 33])
def test_two_ranks_equal_one(tmp_path: Path, share: int) -> None:
    on_two_ranks(on_rank, str(tmp_path), share)
    for rank in (0, 1):
        values = torch.load(tmp_path / f"{rank}.pt")
        for name, (_, expected) in made().items():
            assert values[name] == pytest.approx(expected, rel=1e-9, abs=1e-14), name


def test_class_wise_ece_of_several_labels_counts_the_known_ones() -> None:
    labels = (torch.rand(500, 6, generator=torch.Generator().manual_seed(3)) < LOGITS.sigmoid()).long()
    labels[:100, 0] = -100
    metric = streaming.StreamingClasswiseECE(6)
    for rows in torch.arange(500).split(120):
        metric.update(LOGITS[rows], labels[rows])
    assert metric.compute().item() == pytest.approx(metrics.classwise_ece(logits=LOGITS, target=labels), rel=1e-9)
