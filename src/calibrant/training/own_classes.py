"""Modules of a user's own classes, unpickled without running any of their code."""

import sys
from collections.abc import Iterable
from typing import Any

from torch import nn

# A class that defines one of these outside torch.nn would run code of its own on what a file contains.
HOOKS = ("__new__", "__setstate__", "__reduce__", "__reduce_ex__", "__deepcopy__")


def imported_module(path: str) -> type[nn.Module] | None:
    """Return a subclass of ``torch.nn.Module`` that the program has imported, or None; nothing is imported here.

    Example:
        >>> imported_module("torch.nn.modules.linear.Linear")
        <class 'torch.nn.modules.linear.Linear'>
        >>> imported_module("torch.nn.functional.relu"), imported_module("not_imported.Network")
        (None, None)
    """
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        return None
    is_itself = (found.__module__, found.__qualname__) == (module, name)
    own = [base for base in found.__mro__ if base is not object and not base.__module__.startswith("torch.nn.")]
    is_plain = not any(hook in vars(base) for base in own for hook in HOOKS)
    return found if is_itself and is_plain and found.__basicsize__ == nn.Module.__basicsize__ else None


class StandIns:
    """Classes to unpickle in place of others. Their instances take the real class afterwards.

    A pickle may call the classes that it names with any arguments. A stand-in cannot be called.

    Args:
        classes: Real classes.
    """

    def __init__(self, classes: Iterable[type[nn.Module]]) -> None:
        self._made: list[nn.Module] = []
        self._real = {self._stand_in(each): each for each in classes}

    @property
    def classes(self) -> list[type[nn.Module]]:
        """The stand-ins, which have the names of the real classes."""
        return list(self._real)

    def become_real(self) -> None:
        """Give all instances that were made their real class."""
        for module in self._made:
            module.__class__ = self._real[type(module)]
            for name, value in vars(module).items():
                if isinstance(value, type) and value in self._real:  # an attribute that is a class
                    vars(module)[name] = self._real[value]

    def _stand_in(self, real: type[nn.Module]) -> type[nn.Module]:
        made = self._made

        def new(cls: type[nn.Module], *_: Any) -> nn.Module:
            made.append(object.__new__(cls))
            return made[-1]

        def refuse(_: nn.Module, *__: Any) -> None:
            raise TypeError(f"the file calls {real.__qualname__}, which a module that was saved never does")

        names = {"__module__": real.__module__, "__qualname__": real.__qualname__}
        return type(real.__name__, (nn.Module,), {**names, "__new__": new, "__init__": refuse})
