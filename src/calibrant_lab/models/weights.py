"""Trained weights from a file, without running anything that the file says."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Put the weights of a file that ``torch.save`` wrote into a network; every one must find its place.

    Takes a state dict, or a checkpoint that keeps one as ``"state_dict"``; names may begin with ``module.``,
    as ``DataParallel`` leaves them. Only tensors and plain containers are read (``weights_only=True``). When
    it fails, the network is left as it was.
    """
    weights = _read(Path(path))
    own = model.state_dict()
    # Files older than torch 0.4.1 do not count batches; load_state_dict then starts the count itself.
    needed = {name for name in own if not name.endswith(".num_batches_tracked")}
    missing, surplus = sorted(needed - weights.keys()), sorted(weights.keys() - own.keys())
    differing = [name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape]
    if missing or surplus or differing:
        found = [f"{name!r} is missing" for name in missing[:1]]
        found += [f"{name!r} is not in the network" for name in surplus[:1]]
        found += [
            f"{name!r} has shape {tuple(weights[name].shape)} instead of {tuple(own[name].shape)}"
            for name in sorted(differing)[:1]
        ]
        raise ValueError(f"{path}: holds the weights of another network ({', '.join(found)}): build the one it is for")
    model.load_state_dict(weights)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file of weights: check the path")
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (MemoryError, PermissionError):
        raise
    except Exception as error:  # damage makes the unpickler raise anything
        raise ValueError(
            f"{path}: is damaged, or holds more than tensors: save it with torch.save(model.state_dict(), ...)"
        ) from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError(f"{path}: holds no state dict: save it with torch.save(model.state_dict(), ...)")
    return {str(name).removeprefix("module."): value for name, value in loaded.items()}
