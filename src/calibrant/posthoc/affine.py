"""Penalised multinomial regression: the affine map of logits that the scaling methods fit, solved to the optimum."""

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.posthoc.affine_problem import Penalty as Penalty
from calibrant.posthoc.affine_problem import Problem
from calibrant.posthoc.affine_solvers import lbfgs, newton

# Newton's method below this many products per step; above, L-BFGS, whose steps are cheaper.
NEWTON_PRODUCTS = 1e7
# Above this many elements, products are in single precision: rounding stays below the tolerance, in half the time.
SINGLE_PRECISION = 2**18


class Affine(NamedTuple):
    """Difference from the identity: ``(C, C)`` matrix, or ``(C,)`` diagonal, and ``(C,)`` shift, in float64."""

    matrix: Tensor
    shift: Tensor

    def apply(self, features: Tensor) -> Tensor:
        """Return ``x + D x + b`` for every row x."""
        matrix, shift = self.matrix.to(features.dtype), self.shift.to(features.dtype)
        if matrix.dim() == 1:
            # torch 2.6 cannot export it to ONNX with sides that are broadcast.
            return torch.addcmul(shift.expand_as(features), features, (1 + matrix).expand_as(features))
        return torch.addmm(shift, features, matrix.T) + features


def fit_affine(
    features: Tensor, target: Tensor, weight: Tensor | None, penalty: Penalty, start: Affine, *, tolerance: float = 1e-8
) -> Affine:
    r"""Minimise the NLL of ``x + D x + b`` plus a penalty of squares.

    .. math:: \mathrm{NLL}(x + D x + b) + \lambda_o \sum_{i \ne j} D_{ij}^2 + \lambda_d \sum_j D_{jj}^2
        + \lambda_b \sum_j b_j^2

    The problem is convex. Small ones are solved by Newton's method, large ones by preconditioned L-BFGS.

    Args:
        features: ``(N, C)``.
        target: Class indices, ``(N,)``.
        weight: ``(N,)`` in float64, or None.
        penalty: The three factors; the NLL is a mean over samples.
        start: Initial position; a diagonal matrix given as ``(C,)`` stays diagonal.
        tolerance: Stop when the value is estimated to be this close to its minimum.

    Raises:
        ValueError: If the likelihood overflows.
    """
    diagonal = start.matrix.dim() == 1
    dtype = torch.float32 if features.numel() > SINGLE_PRECISION and not diagonal else torch.float64
    problem = Problem(features, target, weight, penalty, diagonal=diagonal, dtype=dtype)
    # Transposed, so that a column holds everything about one class.
    begin = torch.cat((torch.atleast_2d(start.matrix.t()), start.shift.unsqueeze(0)))
    solver = newton if problem.products <= NEWTON_PRODUCTS else lbfgs
    found = solver(problem, begin.to(dtype), tolerance).double()
    if not found.isfinite().all():
        raise ValueError(
            "the likelihood of the held-out logits overflows: scale the logits to a sensible range, "
            "or leave out samples with huge logits"
        )
    return Affine(found[0] if diagonal else found[:-1].T.contiguous(), found[-1])
