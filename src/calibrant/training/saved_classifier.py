"""The arguments of a classifier in its checkpoint: plain values, and modules without their weights."""

from collections.abc import Iterable, Mapping
from typing import Any

from calibrant.training.lightning_private import load_checkpoint
from calibrant.training.structure import Trusted, UntrustedError, module_of, structure_of


def arguments_of(plain: Mapping[str, Any], modules: Mapping[str, Any], not_saved: Iterable[str]) -> dict[str, Any]:
    """Return what a checkpoint holds about a classifier, in values that load with ``weights_only=True``.

    Args:
        plain: Arguments that are numbers and text.
        modules: Arguments that are modules, or None.
        not_saved: Names of the arguments that were given and that no checkpoint can hold safely.
    """
    structures = {name: None if module is None else structure_of(module) for name, module in modules.items()}
    return {
        "plain": dict(plain),
        "modules": structures,
        "not_pickled": [name for name, module in modules.items() if module is not None and structures[name] is None],
        "not_saved": list(not_saved),
    }


def arguments_in(saved: Mapping[str, Any] | None, given: Mapping[str, Any], trusted: Trusted) -> dict[str, Any]:
    """Return the arguments to make a classifier with: those given, and for the others those saved.

    Args:
        saved: What :func:`arguments_of` returned; None if the checkpoint has none.
        given: Arguments of the user.
        trusted: The user's classes that modules may consist of.
    """
    if saved is None:
        if "model" not in given:
            raise ValueError(
                "this checkpoint does not say how to build the model, as those of earlier versions: pass model=, and "
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
            f"the {name} could not be saved, as lambdas and classes inside functions cannot: pass {name}=, built as it "
            "was"
        )
    structure = saved["modules"][name]
    try:
        return None if structure is None else module_of(structure, trusted)
    except UntrustedError as error:
        classes = ", ".join(name.rpartition(".")[2] for name in error.names)
        raise ValueError(
            f"the {name} has parts that are not of torch.nn: {error}. If you trust them, import them and pass "
            f"trusted=[{classes}], or pass {name}=, built as it was"
        ) from error


def read_without_tensors(path: Any) -> dict[str, Any]:
    """Return the plain values of a checkpoint, with tensors that have no values, which saves reading them."""
    content: dict[str, Any] = load_checkpoint(path, map_location="meta", weights_only=True)
    if hasattr(path, "seek"):
        path.seek(0)
    return content
