"""Load trained weights from a file without running code from it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights written by ``torch.save`` into a network; all names and shapes must match.

    Takes a state dict, or a checkpoint with a ``"state_dict"``; names may begin with ``module.``, as written by
    ``DataParallel``. Only tensors and plain containers are read (``weights_only=True``). If loading fails, the network
    is unchanged.
    """
    weights = _read(Path(path))
    own = model.state_dict()
    # Files older than torch 0.4.1 have no num_batches_tracked; load_state_dict adds it.
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
        raise ValueError(f"{path}: has the weights of another network ({', '.join(found)}): build the matching network")
    model.load_state_dict(weights)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: does not exist: check the path of the weights")
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (MemoryError, PermissionError):
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(
            f"{path}: is damaged, or contains more than tensors: save it with torch.save(model.state_dict(), ...)"
        ) from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError(f"{path}: contains no state dict: save it with torch.save(model.state_dict(), ...)")
    return {str(name).removeprefix("module."): value for name, value in loaded.items()}
