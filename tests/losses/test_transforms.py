"""torch.compile, autocast, torch.func, and devices whose values must not be read."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calibrant as cal
from tests.cases import MODULES, WEIGHTED, random_logits, value_and_gradient

LOGITS, TARGET = random_logits(40, 5, seed=0)
LABELS = torch.nn.functional.one_hot(TARGET).index_put((torch.tensor(3), torch.tensor(2)), torch.tensor(-100))
WEIGHTS = torch.rand(40, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_into_one_graph(name: str) -> None:
    module = MODULES[name]()
    logits, target = random_logits(200, 5, seed=0)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(value_and_gradient(compiled, logits, target), value_and_gradient(module, logits, target))


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.usefixtures("fresh_compiler")
def test_weights_and_labels_compile_into_one_graph(name: str) -> None:
    module, target = WEIGHTED[name], LABELS if "multi-label" in name else TARGET
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        value_and_gradient(lambda x, y: compiled(x, y, None, WEIGHTS), LOGITS, target),
        value_and_gradient(lambda x, y: module(x, y, None, WEIGHTS), LOGITS, target),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ESDLoss", "MMCELoss unbiased", "ECELoss", "SoftBinnedECELoss", "MDCALoss", "FocalLoss"]
)
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_code_gives_zero_where_everything_is_ignored(name: str) -> None:
    compiled = torch.compile(MODULES[name](), fullgraph=True, backend="aot_eager")
    value, gradient = value_and_gradient(compiled, torch.full_like(LOGITS, torch.nan), torch.full_like(TARGET, -100))
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_numpy_options_compile_too() -> None:
    logits, target = random_logits(40, 5, seed=0)
    two: Any = np.float32(2)
    for module in (cal.MMCELoss(two), cal.SoftBinnedECELoss(norm=two), cal.FocalLoss(two), cal.DualFocalLoss(two)):
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(logits, target), module(logits, target))


@pytest.mark.slow  # test_compiles_into_one_graph is the quick one
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default compile backend needs a C++ compiler")
@pytest.mark.parametrize("name", ["ESDLoss raw", "MMCELoss"])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_with_the_default_backend(name: str) -> None:
    module = MODULES[name]()
    logits, target = random_logits(200, 5, seed=0)
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(value_and_gradient(compiled, logits, target), value_and_gradient(module, logits, target))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_code_still_checks_values() -> None:
    logits, target = random_logits(40, 5, seed=0)
    compiled = torch.compile(cal.ESDLoss(), fullgraph=True, backend="aot_eager")
    compiled(logits, target)
    logits[3, 1] = torch.nan
    with pytest.raises(RuntimeError, match="finite"):
        compiled(logits, target)


@pytest.mark.parametrize(
    ("confidence", "correct"), [((0.5, 1.5), (0, 1)), ((-0.5, 0.5), (0, 1)), ((0.5, 0.6), (0, 2))], ids=str
)
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_functions_still_check_values(confidence: tuple[float, float], correct: tuple[float, float]) -> None:
    compiled = torch.compile(cal.functional.dca, fullgraph=True, backend="aot_eager")
    compiled(torch.tensor([0.5, 0.6]), torch.tensor([0.0, 1.0]))
    with pytest.raises(RuntimeError, match=r"confidence|correct"):
        compiled(torch.tensor(confidence), torch.tensor(correct, dtype=torch.float32))


@pytest.mark.parametrize("name", MODULES)
def test_autocast_computes_in_float32(name: str) -> None:
    module = MODULES[name]()
    features, target = random_logits(32, 5, seed=1)
    features = features.float()
    layer = nn.Linear(5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        logits = layer(features)
        inside = module(logits, target)
    assert logits.dtype == torch.bfloat16
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, module(logits.float(), target))
    inside.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("n", [40, 200])
@pytest.mark.parametrize("name", MODULES)
def test_vmap_and_grad_equal_a_loop(name: str, n: int) -> None:
    module = MODULES[name]()
    batches = [random_logits(n, 5, seed=seed) for seed in range(3)]
    logits = torch.stack([x for x, _ in batches])
    target = torch.stack([y for _, y in batches])
    values = torch.stack([module(x, y) for x, y in batches])
    gradients = torch.stack([value_and_gradient(module, x, y)[1] for x, y in batches])
    torch.testing.assert_close(torch.vmap(module)(logits, target), values)
    torch.testing.assert_close(torch.vmap(torch.func.grad(module))(logits, target), gradients)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", [40, 200])
@pytest.mark.parametrize("name", MODULES)
def test_no_value_is_read_on_an_accelerator(name: str, n: int, masked: bool) -> None:
    # A meta tensor has no values: reading one, which on an accelerator would stall it, raises an error here.
    logits = torch.randn(n, 5, device="meta", requires_grad=True)
    target = torch.zeros(n, dtype=torch.long, device="meta")
    mask = torch.ones(n, dtype=torch.bool, device="meta") if masked else None
    value = MODULES[name]()(logits, target, mask=mask)
    value.backward()
    assert value.shape == ()
    assert logits.grad is not None
    assert logits.grad.shape == logits.shape


@pytest.mark.parametrize("name", WEIGHTED)
def test_no_weight_or_label_is_read_on_an_accelerator(name: str) -> None:
    target = LABELS if "multi-label" in name else TARGET
    leaf = torch.empty_like(LOGITS, device="meta", requires_grad=True)
    value = WEIGHTED[name](leaf, target.to("meta"), None, WEIGHTS.to("meta"))
    value.backward()
    assert value.shape == ()


def test_functions_read_no_value_on_an_accelerator() -> None:
    z = torch.rand(200, device="meta")
    c = torch.zeros(200, device="meta")
    for function in (cal.functional.esd, cal.functional.mmce, cal.functional.ece, cal.functional.dca):
        assert function(z, c, mask=c.bool()).shape == ()
