"""Independent transcriptions of the formulas: loops and N x N matrices, nothing shared with the package.

Each takes tensors and is differentiable, so that gradients can be compared as well as values.
"""

import math

import numpy as np
import torch
from torch import Tensor


def esd(z: Tensor, c: Tensor) -> Tensor:
    """The estimator of the paper: mean over i of gbar_i^2 - S_i^2 / (N - 1), with g_ij = 1(z_j <= z_i) (c_j - z_j)."""
    n = len(z)
    g = torch.where(z[None, :] <= z[:, None], (c - z)[None, :], 0.0)
    g = g[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)  # row i holds all j but i
    mean = g.sum(1) / (n - 1)
    variance = ((g - mean[:, None]) ** 2).sum(1) / (n - 2)
    return (mean**2 - variance / (n - 1)).sum() / n


def laplace_kernel(z: Tensor, bandwidth: float) -> Tensor:
    return torch.exp(-(z[:, None] - z[None, :]).abs() / bandwidth)


def mmce(z: Tensor, c: Tensor, bandwidth: float = 0.4, unbiased: bool = False) -> Tensor:
    n = len(z)
    products = (c - z)[:, None] * (c - z)[None, :] * laplace_kernel(z, bandwidth)
    if unbiased:
        return (products * (1 - torch.eye(n, dtype=z.dtype))).sum() / (n * (n - 1))
    return products.sum() / n**2


def mmce_weighted(z: Tensor, c: Tensor, bandwidth: float = 0.4) -> Tensor:
    right, wrong = c.sum(), (1 - c).sum()
    if right == 0 or wrong == 0:
        return (z * 0).sum()
    e = torch.where(c == 1, (1 - z) / right, -z / wrong)
    return e @ laplace_kernel(z, bandwidth) @ e


def soft_binned_ece(
    z: Tensor, c: Tensor, bins: int = 15, temperature: float = 0.01, norm: float = 2, form: str = "label-binned"
) -> Tensor:
    n = len(z)
    centres = [(2 * m + 1) / (2 * bins) for m in range(bins)]
    exponents = torch.stack([-((z - centre) ** 2) / temperature for centre in centres], dim=1)
    u = torch.exp(exponents - exponents.logsumexp(1, keepdim=True))
    total = z.new_zeros(())
    for m in range(bins):
        mass = u[:, m].sum()
        if mass < 1e-150:  # without this the transcription's own gradient overflows
            continue
        accuracy = (u[:, m] * c).sum() / mass
        if form == "binned":
            total = total + mass / n * (accuracy - (u[:, m] * z).sum() / mass).abs() ** norm
        else:
            total = total + (u[:, m] * (accuracy - z).abs() ** norm).sum() / n
    return total ** (1 / norm) if total > 0 else total * 0


def ece(z: Tensor, c: Tensor, bins: int = 20) -> Tensor:
    n = len(z)
    total = z.new_zeros(())
    for m in range(bins):
        lower = m / bins if m else -1.0  # 0 is in the first bin
        inside = [i for i in range(n) if lower < float(z[i].detach()) <= (m + 1) / bins]
        if inside:
            total = total + sum((c[i] - z[i] for i in inside), z.new_zeros(())).abs() / n
    return total


def dca(z: Tensor, c: Tensor) -> Tensor:
    return (z.mean() - c.mean()).abs()


def entropy(p: Tensor) -> Tensor:
    return sum((-q * torch.log(q) for q in p if q > 0), p.new_zeros(()))


def avuc(p: Tensor, c: Tensor, threshold: float, confidence: Tensor) -> Tensor:
    sums = {key: p.new_zeros(()) for key in ("ac", "au", "ic", "iu")}
    for i in range(len(c)):
        h = entropy(p[i])
        certain = bool(h <= threshold)
        side = confidence[i] if c[i] == 1 else 1 - confidence[i]
        key = ("a" if c[i] == 1 else "i") + ("c" if certain else "u")
        sums[key] = sums[key] + side * (1 - torch.tanh(h) if certain else torch.tanh(h))
    return torch.log(1 + (sums["au"] + sums["ic"]) / (sums["ac"] + sums["iu"] + 1e-10))


def soft_avuc(p: Tensor, c: Tensor, threshold: float, temperature: float) -> Tensor:
    sums = {key: p.new_zeros(()) for key in ("ac", "au", "ic", "iu")}
    for i in range(len(c)):
        h = entropy(p[i])
        e = h / math.log(p.shape[1])
        t = 1 / (1 + torch.exp(-(torch.log(e / (1 - e)) - math.log(threshold / (1 - threshold))) / temperature))
        side = "a" if c[i] == 1 else "i"
        sums[side + "c"] = sums[side + "c"] + (1 - t) * (1 - torch.tanh(h))
        sums[side + "u"] = sums[side + "u"] + t * torch.tanh(h)
    return torch.log(1 + (sums["au"] + sums["ic"]) / (sums["ac"] + sums["iu"] + 1e-10))


def softmax(logits: Tensor) -> Tensor:
    powers = torch.exp(logits - logits.max(1, keepdim=True).values)
    return powers / powers.sum(1, keepdim=True)


def focal(logits: Tensor, y: Tensor, gamma: float) -> Tensor:
    p = softmax(logits)
    return sum((-((1 - p[i, y[i]]) ** gamma) * torch.log(p[i, y[i]]) for i in range(len(y))), p.new_zeros(())) / len(y)


def flsd_53(logits: Tensor, y: Tensor) -> Tensor:
    p = softmax(logits)
    total = p.new_zeros(())
    for i in range(len(y)):
        q = p[i, y[i]]
        total = total - (1 - q) ** (5 if q < 0.2 else 3) * torch.log(q)
    return total / len(y)


def dual_focal(logits: Tensor, y: Tensor, gamma: float) -> Tensor:
    p = softmax(logits)
    total = p.new_zeros(())
    for i in range(len(y)):
        q = p[i, y[i]]
        below = [p[i, k] for k in range(p.shape[1]) if p[i, k] < q]
        runner_up = max(below) if below else p.new_zeros(())
        total = total - (1 - q + runner_up) ** gamma * torch.log(q)
    return total / len(y)


def label_smoothing(logits: Tensor, y: Tensor, smoothing: float, spread: str) -> Tensor:
    log_p = torch.log(softmax(logits))
    classes = logits.shape[1]
    total = log_p.new_zeros(())
    for i in range(len(y)):
        for k in range(classes):
            if spread == "all":
                q = smoothing / classes + (1 - smoothing if k == y[i] else 0.0)
            else:
                q = 1 - smoothing if k == y[i] else smoothing / (classes - 1)
            total = total - q * log_p[i, k]
    return total / len(y)


def margin_label_smoothing(logits: Tensor, y: Tensor, margin: float, weight: float) -> Tensor:
    log_p = torch.log(softmax(logits))
    total = log_p.new_zeros(())
    for i in range(len(y)):
        total = total - log_p[i, y[i]]
        for k in range(logits.shape[1]):
            excess = logits[i].max() - logits[i, k] - margin
            if excess > 0:
                total = total + weight * excess / logits.shape[1]
    return total / len(y)


def mdca(logits: Tensor, y: Tensor) -> Tensor:
    p = softmax(logits)
    gaps = [(p[:, k].mean() - (y == k).to(p.dtype).mean()).abs() for k in range(p.shape[1])]
    return sum(gaps, p.new_zeros(())) / p.shape[1]


def brier(logits: Tensor, y: Tensor) -> Tensor:
    p = softmax(logits)
    onehot = torch.eye(p.shape[1], dtype=p.dtype)[y]
    return ((p - onehot) ** 2).sum(1).mean()


def bsce_gra(logits: Tensor, y: Tensor, gamma: float = 2.0, norm: float = 2.0) -> Tensor:
    p = softmax(logits)
    total = p.new_zeros(())
    for i in range(len(y)):
        fixed = p[i].tolist()
        gaps = [abs(fixed[k] - (1.0 if k == y[i] else 0.0)) for k in range(len(fixed))]
        weight = sum(gap**norm for gap in gaps) ** (gamma / norm)
        total = total - weight * torch.log(p[i, y[i]])
    return total / len(y)


def logit_norm(logits: Tensor, y: Tensor, temperature: float = 0.04) -> Tensor:
    total = logits.new_zeros(())
    for i in range(len(y)):
        length = torch.sqrt(sum((x**2 for x in logits[i]), logits.new_zeros(())))
        normalised = logits[i] / (temperature * (length + 1e-7))
        total = total - torch.log(softmax(normalised[None])[0, y[i]])
    return total / len(y)


def adafocal(logits: Tensor, y: Tensor, gamma: list[float], edges: list[float]) -> Tensor:
    p = softmax(logits)
    total = p.new_zeros(())
    for i in range(len(y)):
        q = p[i, y[i]]
        strength = gamma[sum(edge < float(q.detach()) for edge in edges)]
        factor = (1 - q) ** strength if strength > 0 else (1 + q) ** -strength
        total = total - factor * torch.log(q)
    return total / len(y)


def adafocal_update(
    z: Tensor, c: Tensor, gamma: list[float], rate: float = 1.0, switch: float = 0.2
) -> tuple[list[float], list[float]]:
    """One update of the strengths from held-out confidences: the new strengths, and the edges between the bins."""
    ascending, n, bins = np.sort(z.numpy()), len(z), len(gamma)
    edges = np.interp([k * n / bins for k in range(1, bins)], range(n), ascending).tolist()
    updated = []
    for m in range(bins):
        inside = [i for i in range(n) if sum(edge < float(z[i]) for edge in edges) == m]
        gap = sum(float(z[i]) - float(c[i]) for i in inside) / len(inside) if inside else 0.0
        strength = gamma[m] * math.exp(rate * gap if gamma[m] > 0 else -rate * gap)
        if abs(strength) < switch:
            strength = -switch if strength > 0 else switch
        updated.append(max(-2.0, min(20.0, strength)))
    return updated, edges


def cals(logits: Tensor, y: Tensor, multiplier: list[float], rho: list[float], margin: float) -> Tensor:
    log_p = torch.log(softmax(logits))
    n, classes = logits.shape
    total = log_p.new_zeros(())
    for i in range(n):
        total = total - log_p[i, y[i]]
        for k in range(classes):
            h = (logits[i].max() - logits[i, k]) / margin - 1
            if multiplier[k] + rho[k] * h >= 0:
                total = total + (multiplier[k] * h + rho[k] * h**2 / 2) / classes
            else:
                total = total - multiplier[k] ** 2 / (2 * rho[k]) / classes
    return total / n


def cals_update(logits: Tensor, multiplier: list[float], rho: list[float], margin: float) -> tuple[list[float], ...]:
    """The new multipliers, and the mean excess of each class."""
    n, classes = logits.shape
    updated, excess = [], []
    for k in range(classes):
        h = [float(logits[i].max() - logits[i, k]) / margin - 1 for i in range(n)]
        slopes = [min(max(multiplier[k] + rho[k] * one, 1e-6), 1e6) for one in h]
        updated.append(sum(slopes) / n)
        excess.append(sum(h) / n)
    return updated, excess


def ece_kde(logits: Tensor, y: Tensor, bandwidth: float, norm: float = 1.0) -> Tensor:
    """With the densities of torch.distributions as kernels."""
    f = softmax(logits)
    kernels = [torch.distributions.Dirichlet(f[i] / bandwidth + 1, validate_args=False) for i in range(len(y))]
    total = f.new_zeros(())
    for j in range(len(y)):
        others = [i for i in range(len(y)) if i != j]
        log_k = torch.stack([kernels[i].log_prob(f[j]) for i in others])
        k = torch.exp(log_k - log_k.detach().max())
        for label in range(f.shape[1]):
            ratio = sum((k[a] for a, i in enumerate(others) if y[i] == label), f.new_zeros(())) / k.sum()
            total = total + (ratio - f[j, label]).abs() ** norm
    return total / len(y)


def ece_kde_top_label(z: Tensor, c: Tensor, bandwidth: float, norm: float = 1.0) -> Tensor:
    n = len(z)
    kernels = [
        torch.distributions.Beta(z[i] / bandwidth + 1, (1 - z[i]) / bandwidth + 1, validate_args=False)
        for i in range(n)
    ]
    total = z.new_zeros(())
    for j in range(n):
        others = [i for i in range(n) if i != j]
        log_k = torch.stack([kernels[i].log_prob(z[j]) for i in others])
        k = torch.exp(log_k - log_k.detach().max())
        ratio = sum((k[a] for a, i in enumerate(others) if c[i] == 1), z.new_zeros(())) / k.sum()
        total = total + (ratio - z[j]).abs() ** norm
    return total / n
