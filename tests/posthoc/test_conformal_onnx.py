"""Sets of modules that torch exports are those of predict_set."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.posthoc import ConformalClassifier

SCORES: list[Any] = ["lac", "aps", "raps", "top-k"]
KINDS: list[Any] = ["marginal", "class-conditional", "group-conditional"]


def data(samples: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with ties within and between rows, labels and groups."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, classes, generator=draw)
    logits[::3] = logits[::3].round()
    target = logits.softmax(1).multinomial(1, generator=draw).squeeze(1)
    return logits, target, torch.randint(3, (samples,), generator=draw)


def fitted(
    score: Any, kind: Any, logits: Tensor, target: Tensor, groups: Tensor, **options: Any
) -> ConformalClassifier:
    conformal = ConformalClassifier(score, coverage=kind, rank=2, **options)
    names = [f"group {place}" for place in groups.tolist()]
    return conformal.fit(logits, target, groups=names if kind == "group-conditional" else None)


def expected_sets(conformal: ConformalClassifier, logits: Tensor, groups: Tensor) -> Tensor:
    if conformal.coverage != "group-conditional":
        return torch.as_tensor(conformal.predict_set(logits))
    return torch.as_tensor(conformal.predict_set(logits, groups=[f"group {place}" for place in groups.tolist()]))


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("score", SCORES)
def test_torch_export(score: Any, kind: Any) -> None:
    logits, target, groups = data(1500, 6, seed=0)
    conformal = fitted(score, kind, logits, target, groups, randomized=False)
    arguments = (logits, groups) if kind == "group-conditional" else (logits,)
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        conformal.module(),
        tuple(value[:4] for value in arguments),
        dynamic_shapes=tuple({0: batch} for _ in arguments),
    )
    assert torch.equal(program.module()(*arguments), expected_sets(conformal, logits, groups))


def only_at_the_quantile(conformal: Any, logits: Tensor, differ: Tensor) -> bool:
    """Whether sets differ only where a score is the quantile: another library may round it to the other side."""
    if not differ.any():
        return True
    quantiles = torch.from_numpy(conformal.map_.quantile).double().flatten()
    scores = 1 - logits.double().softmax(1)[differ]  # of LAC, the only one with exponentials at its quantile
    return conformal.score == "lac" and bool(((scores[:, None] - quantiles).abs().amin(1) < 1e-6).all())


def exported(model: nn.Module, arguments: tuple[Tensor, ...]) -> Any:
    """An onnxruntime session of a model for batches of any size."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"torch.onnx.export needs {package}")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime to run the exported sets")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8):
        pytest.skip("before torch 2.8 sets are exported by to_onnx only: torch does not say that it exports to ONNX")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        model, arguments, dynamo=True, dynamic_shapes=tuple({0: batch} for _ in arguments), verbose=False
    )
    assert program is not None
    return runtime.InferenceSession(program.model_proto.SerializeToString())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter, about its own code
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("score", SCORES)
def test_onnx(score: Any, kind: Any) -> None:
    logits, target, groups = data(3000, 6, seed=1)
    conformal = fitted(score, kind, logits[:1500], target[:1500], groups[:1500], randomized=False)
    arguments = (logits, groups) if kind == "group-conditional" else (logits,)
    session = exported(conformal.module(), tuple(value[:4] for value in arguments))
    names = [given.name for given in session.get_inputs()]
    (sets,) = session.run(None, {name: value.numpy() for name, value in zip(names, arguments, strict=True)})
    differ = torch.from_numpy(sets) != expected_sets(conformal, logits, groups)
    assert only_at_the_quantile(conformal, logits, differ)
    if kind == "group-conditional":
        unknown = torch.tensor([-1, 3, 99] * 1000)
        (sets,) = session.run(None, dict(zip(names, (logits.numpy(), unknown.numpy()), strict=True)))
        assert sets.all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("randomized", [True, False])
@pytest.mark.parametrize("score", ["lac", "top-k"])
def test_onnx_of_a_network_with_binary_sets(score: Any, randomized: bool) -> None:
    torch.manual_seed(0)
    network, x = nn.Linear(4, 1), torch.randn(600, 4)
    logits = network(x).detach()
    target = torch.bernoulli(logits.sigmoid()).long().squeeze(1)
    model = nn.Sequential(
        network, ConformalClassifier(score, randomized=randomized).fit(logits, target).module()
    ).eval()
    session = exported(model, (x[:4],))
    (sets,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    pairs = torch.cat((torch.zeros_like(logits), logits), dim=1)
    assert only_at_the_quantile(model[1].calibrator, pairs, torch.from_numpy(sets) != model(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("score", ["aps", "raps"])
def test_randomised_sets_say_what_onnx_needs(score: Any) -> None:
    logits, target, groups = data(500, 4, seed=2)
    conformal = fitted(score, "marginal", logits, target, groups)
    with pytest.raises(Exception, match="randomized=False"):
        exported(conformal.module(), (logits[:4],))
