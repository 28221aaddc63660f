"""Modules without their weights, as text that a checkpoint can carry and that is read without running foreign code."""

import base64
import copy
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

import calibrant

Trusted = Iterable[Callable[..., Any]]


def structure_of(module: Any) -> str | None:
    """Return all of a module but its weights, or None if it cannot be pickled, as a lambda or a local class cannot.

    Example:
        >>> module_of(structure_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU())))
        Sequential(
          (0): Linear(in_features=2, out_features=3, bias=True)
          (1): ReLU()
        )
    """
    file = io.BytesIO()
    try:
        torch.save(_with_tensors(module, lambda tensor: torch.empty_like(tensor, device="meta")), file)
    except Exception:  # what pickling and copying raise is up to the classes; a checkpoint must not fail for it
        return None
    return base64.b64encode(file.getvalue()).decode()


def module_of(structure: str, trusted: Trusted = ()) -> Any:
    """Build a module from its structure; its weights are not initialised.

    Only classes of ``torch.nn``, objectives of Calibrant and ``trusted`` classes are unpickled: the file is read by
    ``torch.load(weights_only=True)``.

    Args:
        structure: What :func:`structure_of` returned.
        trusted: Classes and functions, beyond those, that the structure may refer to.

    Raises:
        UntrustedError: If the structure refers to other classes.
    """
    content = base64.b64decode(structure)
    with safe_globals([*_safe(), *trusted]):
        others = sorted(get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
        if others:
            raise UntrustedError(others)
        skeleton = torch.load(io.BytesIO(content), weights_only=True)
    return _with_tensors(skeleton, lambda tensor: torch.empty_like(tensor, device="cpu"))


class UntrustedError(ValueError):
    """A structure refers to classes that are not known to be safe.

    Args:
        names: Full names of these classes.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


def _with_tensors(module: Any, replaced: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a module with other tensors in place of all that its ``state_dict`` holds."""
    memo: dict[int, Any] = {}
    state: Mapping[str, Any] = module.state_dict(keep_vars=True) if isinstance(module, nn.Module) else {}
    for tensor in state.values():
        if isinstance(tensor, nn.Parameter):
            memo[id(tensor)] = nn.Parameter(replaced(tensor.data), tensor.requires_grad)
        elif isinstance(tensor, Tensor):
            memo[id(tensor)] = replaced(tensor)
    return copy.deepcopy(module, memo)


def _safe() -> list[Any]:
    known = [*vars(nn).values(), *vars(calibrant).values()]
    modules = [each for each in known if isinstance(each, type) and issubclass(each, nn.Module)]
    # Parts of torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer.
    return [*modules, NonDynamicallyQuantizableLinear, F.relu, F.gelu]
