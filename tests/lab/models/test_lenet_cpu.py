"""LeNet5's compiled layers: torch's function and gradients, and torch's own layers wherever they cannot be used."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant_lab.models import lenet_cpu
from calibrant_lab.models.lenet import LeNet5

KINDS: dict[str, Callable[[int], Tensor]] = {
    "random": lambda n: torch.randn(n, 1, 32, 32),
    # Mostly background, as in MNIST: whole pooling windows are tied.
    "sparse": lambda n: (torch.rand(n, 1, 32, 32) - 0.8).clamp(min=0),
    "blank": lambda n: torch.zeros(n, 1, 32, 32),
}


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lenet_cpu.PLAIN, raising=False)
    if not lenet_cpu.available():
        pytest.skip("there is no C compiler, or nowhere to keep what it makes")


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The library is looked for afresh, and again after the test."""
    lenet_cpu._library.cache_clear()
    yield
    lenet_cpu._library.cache_clear()


def outcome(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the gradients of a loss of them."""
    logits: Tensor = model(x)
    loss = F.cross_entropy(logits, torch.arange(len(x)) % 10)
    return logits, list(torch.autograd.grad(loss, list(model.parameters())))


def is_fast(model: LeNet5, x: Tensor) -> bool:
    return lenet_cpu.applies(list(model)[:7], x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [16, 17, 100, 512])
def test_logits_and_gradients_are_those_of_torch_in_float64(n: int, kind: str) -> None:
    torch.manual_seed(n)
    model, x = LeNet5(), KINDS[kind](n)
    assert is_fast(model, x)
    logits, gradients = outcome(model, x)
    expected, others = outcome(copy.deepcopy(model).double(), x.double())
    for one, other in zip([logits, *gradients], [expected, *others], strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_features_are_in_the_order_of_torch() -> None:
    torch.manual_seed(0)
    layers, x = list(LeNet5())[:7], torch.rand(33, 1, 32, 32)
    expected = nn.Sequential(*layers)(x)
    torch.testing.assert_close(lenet_cpu.features(layers, x), expected)
    with torch.no_grad():
        torch.testing.assert_close(lenet_cpu.features(layers, x), expected)
        assert lenet_cpu.features(layers, x[:0]).shape == (0, 400)


def test_no_images_have_no_gradient() -> None:
    layers = list(LeNet5())[:7]
    parameters = list(nn.Sequential(*layers).parameters())
    total = lenet_cpu.features(layers, torch.zeros(0, 1, 32, 32)).sum()
    for gradient, parameter in zip(torch.autograd.grad(total, parameters), parameters, strict=True):
        assert torch.equal(gradient, torch.zeros_like(parameter))


def test_views_and_contiguous_weights_are_taken() -> None:
    torch.manual_seed(0)
    model, x = LeNet5(), torch.rand(32, 1, 32, 40)[..., 4:36]
    logits, gradients = outcome(model, x)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch forgot to type it
    assert is_fast(model, x)
    again, others = outcome(model, x.contiguous())
    assert torch.equal(logits, again)
    assert all(map(torch.equal, gradients, others))


def test_two_calls_agree_to_the_bit() -> None:
    torch.manual_seed(0)
    model, x = LeNet5(), torch.rand(100, 1, 32, 32)
    (one, gradients), (other, others) = outcome(model, x), outcome(model, x)
    assert torch.equal(one, other)
    assert all(map(torch.equal, gradients, others))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_image_that_is_not_finite_spoils_what_torch_spoils(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers, x = list(LeNet5())[:7], torch.rand(20, 1, 32, 32)
    x[3, 0, 10, 10] = value
    torch.testing.assert_close(lenet_cpu.features(layers, x), nn.Sequential(*layers)(x), equal_nan=True)


def test_what_is_not_plain_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = LeNet5(), torch.rand(16, 1, 32, 32)
    assert is_fast(model, x)
    assert not is_fast(model, x[:15])
    assert not is_fast(model, x.double())
    assert not is_fast(model.double(), x)
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_fast(model, x)
    handle = model[4].register_forward_hook(lambda *_: None)
    assert not is_fast(model, x)
    handle.remove()
    assert is_fast(model, x)
    monkeypatch.setenv(lenet_cpu.PLAIN, "1")
    assert not is_fast(model, x)


def test_images_may_require_a_gradient() -> None:
    model, x = LeNet5(), torch.rand(16, 1, 32, 32, requires_grad=True)
    assert not is_fast(model, x)
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
    assert gradient.abs().sum() > 0


def test_transforms_take_the_layers_of_torch() -> None:
    torch.manual_seed(0)
    model, x = LeNet5(), torch.rand(16, 1, 32, 32)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, values, (x,)).square().mean()  # type: ignore[no-any-return]

    (expected,) = torch.autograd.grad(model(x).square().mean(), [model.get_parameter("0.weight")])
    torch.testing.assert_close(torch.func.grad(loss)(parameters)["0.weight"], expected)
    tangent = torch.func.jvp(loss, (parameters,), (parameters,))[1]
    assert tangent.isfinite()


def test_a_second_derivative_is_refused() -> None:
    model, x = LeNet5(), torch.rand(16, 1, 32, 32)
    weight = model.get_parameter("0.weight")
    (gradient,) = torch.autograd.grad(model(x).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_without_a_compiler_torch_does_it(forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not lenet_cpu.available()
    assert LeNet5()(torch.rand(16, 1, 32, 32)).shape == (16, 10)


def test_a_compiler_that_fails_is_not_an_error(
    forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not lenet_cpu.available()


def test_a_folder_that_cannot_be_written_is_not_an_error(
    forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(lenet_cpu, "_cache", lambda: tmp_path / "file")
    assert not lenet_cpu.available()


def test_a_damaged_file_is_made_anew(forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(lenet_cpu, "_cache", lambda: folders[0])
    assert lenet_cpu.available()
    (made,) = folders.pop(0).iterdir()
    folders[0].mkdir()
    (folders[0] / made.name).write_bytes(b"damaged")
    lenet_cpu._library.cache_clear()
    assert lenet_cpu.available()
    assert (folders[0] / made.name).read_bytes() == made.read_bytes()


def test_two_processes_may_compile_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    code = "from calibrant_lab.models import lenet_cpu; assert lenet_cpu.available()"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
