"""The convolutional half of LeNet5 compiled for this CPU, several times faster than torch's convolutions.

The C source beside this file is compiled by the system's compiler when first needed and kept in the user's cache.
Where that is impossible, nothing is said and the caller uses torch: the results agree to rounding.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Set to anything but nothing to have torch's own layers.
PLAIN = "CALIBRANT_PLAIN_LENET"
SOURCE = Path(__file__).with_name("lenet_features.c")
# No -ffast-math: NaN and infinity must come out as torch has them. Compilers differ in how "this CPU" is spelt.
COMMON = ("-O3", "-ffp-contract=fast", "-shared", "-fPIC")
NATIVE = (("-march=native",), ("-mcpu=native",), ())
SECONDS = 60
LAYERS = (nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten)
# The kernel takes up to 16 images at once, however few there are.
FEWEST = 16
POOLED, POOLED_STRIDE, FEATURES = 1176, 1184, 400


def available() -> bool:
    """Whether the compiled layers can be used in this process; the first call compiles them if need be."""
    return not os.environ.get(PLAIN) and _library() is not None


def applies(layers: Sequence[nn.Module], x: Tensor) -> bool:
    """Whether :func:`features` may stand in for ``layers``, the first seven of LeNet5, on ``x``."""
    return _is_plain_input(x) and _is_plain_mode() and _are_plain_layers(layers) and available()


def features(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """What LeNet5's first seven layers make of images ``(N, 1, 32, 32)``: ``(N, 400)``.

    Differentiable once, in the layers' parameters. Ask :func:`applies` first.
    """
    parameters = [getattr(layers[i], name) for i in (0, 3) for name in ("weight", "bias")]
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        result: Tensor = _Features.apply(x, *parameters)  # type: ignore[no-untyped-call]
        return result
    return _forward(x, *parameters, save=False)[0]


def _is_plain_input(x: Tensor) -> bool:
    return (
        type(x) is Tensor
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and not x.requires_grad
        and x.shape[0] >= FEWEST
        and x.shape[1:] == (1, 32, 32)
    )


def _is_plain_mode() -> bool:
    """No compiler, tracer, transform, mixed precision or observer of torch's operations is at work."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch.is_autocast_enabled("cpu")
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch.autograd.forward_ad._current_level >= 0
    )


def _are_plain_layers(layers: Sequence[nn.Module]) -> bool:
    """The layers are as LeNet5 made them, in float32 on the CPU, and nobody hooked into them."""
    if tuple(map(type, layers)) != LAYERS or nn.modules.module._has_any_global_hook():
        return False
    if any(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        for layer in layers
    ):
        return False
    return all(
        type(tensor) is nn.Parameter
        and tensor.shape == shape
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        for layer, shapes in ((layers[0], ((6, 1, 5, 5), (6,))), (layers[3], ((16, 6, 5, 5), (16,))))
        for tensor, shape in zip((layer.weight, layer.bias), shapes, strict=True)
    )


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        result, *saved = _forward(x, *parameters, save=True)
        ctx.save_for_backward(x, parameters[2], *saved)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight2, *saved = ctx.saved_tensors
        return None, *_backward(x, weight2, saved, gradient)


def _forward(x: Tensor, *parameters: Tensor, save: bool) -> tuple[Tensor, ...]:
    library = _loaded()
    weight1, bias1, weight2, bias2 = parameters
    # The kernel's layout of a weight is (out, row, column, in), which is how LeNet5 keeps it: no copy is made.
    inputs = [x.contiguous(), weight1.contiguous(), bias1.contiguous(), weight2.permute(0, 2, 3, 1).contiguous(), bias2]
    outputs = [x.new_empty(len(x), FEATURES)]
    if save:
        lanes = library.lenet_lanes()
        padded = -(-len(x) // lanes) * lanes
        outputs.append(x.new_empty(len(x), POOLED_STRIDE))
        outputs += [torch.empty(padded * size, dtype=torch.uint8) for size in (POOLED, FEATURES)]
    nothing = [None] * (4 - len(outputs))
    _check(library.lenet_forward(len(x), *_addresses(inputs), *_addresses(outputs), *nothing))
    return tuple(outputs)


def _backward(x: Tensor, weight2: Tensor, saved: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    inputs = [x.contiguous(), weight2.permute(0, 2, 3, 1).contiguous(), *saved, gradient.float().contiguous()]
    outputs = [x.new_empty(shape) for shape in ((6, 1, 5, 5), (6,), (16, 5, 5, 6), (16,))]
    _check(_loaded().lenet_backward(len(x), *_addresses(inputs), *_addresses(outputs)))
    return outputs[0], outputs[1], outputs[2].permute(0, 3, 1, 2), outputs[3]


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _check(status: int) -> None:
    if status:
        raise MemoryError("no memory for the working space of LeNet5's layers")


def _loaded() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise RuntimeError("LeNet5's layers are not compiled: ask available() first")
    return library


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled kernel, from the cache or the compiler; None where there is neither."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    for native in NATIVE:
        try:
            return _built([compiler, *COMMON, *native])
        except subprocess.CalledProcessError:
            continue  # it does not know this flag
        except (OSError, subprocess.SubprocessError, RuntimeError):
            break  # no disk, no home, no time: there is still torch
    return None


def _built(command: Sequence[str]) -> ctypes.CDLL:
    path = _cache() / f"lenet_features-{_key(command)}.so"
    # A file that does not load was damaged, and is made anew.
    with contextlib.suppress(OSError):
        return _load(path)
    _compile(command, path)
    return _load(path)


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.lenet_lanes.argtypes = []
    library.lenet_forward.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 9
    library.lenet_backward.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 10
    return library


def _cache() -> Path:
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "calibrant"


def _key(command: Sequence[str]) -> str:
    """Changes with whatever the compiled code depends on: a home folder may be shared by different machines."""
    version = _run([command[0], "--version"])
    parts = (SOURCE.read_bytes(), "\0".join(command).encode(), version, _processor().encode())
    return hashlib.sha256(b"\0\0".join(parts)).hexdigest()[:24]


def _processor() -> str:
    lines = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        kinds = ("model name", "flags", "Features", "CPU part")
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        lines += sorted({line for line in information if line.startswith(kinds)})
    return "\n".join(lines)


def _compile(command: Sequence[str], path: Path) -> None:
    """Compile beside ``path`` and rename, so that other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        _run([*command, str(SOURCE), "-o", str(made)])
        made.replace(path)


def _run(command: Sequence[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL).stdout  # noqa: S603
