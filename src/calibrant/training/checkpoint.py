"""Checkpoints: written atomically, with the arguments of a classifier, and read without running foreign code."""

import base64
import copy
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

import calibrant
from calibrant.training.lightning_private import load_checkpoint

Trusted = Iterable[Callable[..., Any]]


def structure_of(module: Any) -> str | None:
    """Serialise a module without its weights; None if it cannot be pickled, such as a lambda or a local class.

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
    except Exception:  # classes may raise anything when pickled or copied, and a checkpoint must not fail
        return None
    return base64.b64encode(file.getvalue()).decode()


def module_of(structure: str, trusted: Trusted = (), name: str = "module") -> Any:
    """Build a module from its structure; its weights are not initialised.

    Only classes of ``torch.nn``, objectives of Calibrant and ``trusted`` classes are unpickled: the file is read by
    ``torch.load(weights_only=True)``. Others raise an error that calls the module ``name``.
    """
    content = base64.b64decode(structure)
    known = [*vars(nn).values(), *vars(calibrant).values()]
    modules = [each for each in known if isinstance(each, type) and issubclass(each, nn.Module)]
    # The last are parts of torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer.
    with safe_globals([*modules, NonDynamicallyQuantizableLinear, F.relu, F.gelu, *trusted]):
        others = sorted(get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
        if others:
            classes = ", ".join(other.rpartition(".")[2] for other in others)
            raise ValueError(
                f"the {name} has parts that are not in torch.nn: {', '.join(others)}. If you trust them, import them "
                f"and pass trusted=[{classes}], or pass {name}=, built as before"
            )
        skeleton = torch.load(io.BytesIO(content), weights_only=True)
    return _with_tensors(skeleton, lambda tensor: torch.empty_like(tensor, device="cpu"))


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


def arguments_of(plain: Mapping[str, Any], modules: Mapping[str, Any], not_saved: Iterable[str]) -> dict[str, Any]:
    """Return what a checkpoint holds about a classifier, in values that load with ``weights_only=True``."""
    structures = {name: None if module is None else structure_of(module) for name, module in modules.items()}
    return {
        "plain": dict(plain),
        "modules": structures,
        "not_pickled": [name for name, module in modules.items() if module is not None and structures[name] is None],
        "not_saved": list(not_saved),
    }


def arguments_in(saved: Mapping[str, Any] | None, given: Mapping[str, Any], trusted: Trusted) -> dict[str, Any]:
    """Return the arguments of a classifier: those given, and the saved ones for the rest."""
    if saved is None:
        if "model" not in given:
            raise ValueError(
                "this checkpoint does not say how to build the model, like those of earlier versions: pass model=, and "
                "objective= if it had one"
            )
        return dict(given)
    plain = saved["plain"]
    if given.get("optimizer") is not None:
        plain = {name: value for name, value in plain.items() if name != "learning_rate"}
    names = [name for name in saved["modules"] if name not in given]
    return {**plain, **{name: _module(name, saved, trusted) for name in names}, **given}


def _module(name: str, saved: Mapping[str, Any], trusted: Trusted) -> Any:
    if name in saved["not_pickled"]:
        raise ValueError(
            f"the {name} could not be saved (lambdas and classes inside functions cannot be): pass {name}=, built as "
            "before"
        )
    structure = saved["modules"][name]
    return None if structure is None else module_of(structure, trusted, name)


def read_without_tensors(path: Any) -> dict[str, Any]:
    """Return the plain values of a checkpoint, with meta tensors, which saves reading the weights."""
    content: dict[str, Any] = load_checkpoint(path, map_location="meta", weights_only=True)
    if hasattr(path, "seek"):
        path.seek(0)
    return content


class WholeCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to a file beside it and rename that: a killed run leaves the previous checkpoint intact.

    Lightning itself writes to the folder of temporary files and moves the result, which across file systems is a copy.
    Remote paths such as ``s3://`` are left to Lightning.

    Example:
        >>> from lightning import Trainer
        >>> trainer = Trainer(plugins=[WholeCheckpointIO()], accelerator="cpu", logger=False)
        >>> type(trainer.strategy.checkpoint_io).__name__
        'WholeCheckpointIO'
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Save a checkpoint under ``path``."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        final = Path(path).absolute()
        final.parent.mkdir(parents=True, exist_ok=True)
        # One temporary name per checkpoint, so that leftovers of a killed run are overwritten. Lightning ignores this
        # suffix when it looks for the last checkpoint.
        partial = final.with_name(f"{final.name}.partial")
        try:
            with partial.open("wb") as file:  # torch's own writer does not report a full disk
                torch.save(checkpoint, file)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
