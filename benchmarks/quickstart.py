"""The program of docs/quickstart/engineer.md over five seeds, beside NLL and NLL + temperature.

python -m benchmarks.quickstart
"""

import statistics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant as cal

SEEDS = 5


def trained(dataset: Any, seed: int, *, calibrates: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Train the network of the page, with its line or with cross entropy alone; return it and the held-out samples."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    train, held_out = cal.training.interleaved_split(dataset, 0.1, seed=seed)
    held_out_loader = DataLoader(held_out, 200, shuffle=True)
    calibrated = cal.training.CalibratedLoss(model)
    batches = cal.training.interleave(DataLoader(train, 200, shuffle=True), held_out_loader)
    for _ in range(30):
        for (x, y), (x_cal, y_cal) in batches:
            loss = calibrated(x, y, x_cal, y_cal) if calibrates else F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if calibrates:
        calibrated.finish(held_out_loader)
    return model, next(iter(held_out_loader))


def main() -> None:
    """Print mean and standard deviation of accuracy, ECE and log loss."""
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float, float]]] = {"NLL": [], "NLL + temperature": [], "CalibratedLoss": []}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        x = torch.randn(8000, 20)
        y = (x[:, :3] + 0.7 * torch.randn(8000, 3)).argmax(1)
        dataset, x_test, y_test = TensorDataset(x[:2000], y[:2000]), x[2000:], y[2000:]
        plain, held_out = trained(dataset, seed, calibrates=False)
        calibrated, _ = trained(dataset, seed, calibrates=True)
        with torch.no_grad():
            scaling = cal.posthoc.TemperatureScaling(strict=True).fit(plain(held_out[0]), held_out[1])
            logits = plain(x_test)
            for name, one in (
                ("NLL", logits), ("NLL + temperature", scaling(logits)), ("CalibratedLoss", calibrated(x_test)),
            ):  # fmt: skip
                scores = cal.metrics.evaluate(logits=one, target=y_test)
                found[name].append((100 * scores.accuracy, 100 * scores.ece, scores.log_loss))
    for name, rows in found.items():
        cells = [
            f"{statistics.mean(column):.3f} ± {statistics.stdev(column):.3f}" for column in zip(*rows, strict=True)
        ]
        print(f"{name}: accuracy %, ECE %, log loss: {', '.join(cells)}")


if __name__ == "__main__":
    main()
