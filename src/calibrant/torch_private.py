"""Private names of torch that this package depends on, all of them here. Tested with torch 2.6.0 and 2.13.0.

Hooks that a subclass overrides, ``nn.Module._apply`` and ``_load_from_state_dict``, are not listed here.
"""

import torch
import torch.autograd.forward_ad
from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, dropout

BatchNorm = batchnorm._BatchNorm
Convolution = conv._ConvNd
Dropout = dropout._DropoutNd


def is_transformed() -> bool:
    """Whether a ``torch.func`` transform, or a tracer such as ``make_fx`` or ``torch.jit.trace``, is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_tracing()
    )


def is_exporting_to_onnx() -> bool:
    """Whether ``torch.onnx.export`` is at work, which torch says from 2.8 on."""
    return torch.onnx.is_in_onnx_export()


def is_forward_mode() -> bool:
    """Whether this is inside ``torch.autograd.forward_ad.dual_level``."""
    return torch.autograd.forward_ad._current_level >= 0


def assert_without_waiting(condition: Tensor, message: str) -> None:
    """Check a condition on an accelerator without waiting for it."""
    torch._assert_async(condition, message)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` has wrapped, or the model itself."""
    return getattr(model, "_orig_mod", model)
