"""Calibrated training in a plain PyTorch loop, compared with the usual remedy.

Trains the same network twice on synthetic data with five classes: with cross-entropy, followed by temperature scaling
on held-out data, and with `CalibratedLoss`, which uses the same held-out data during training. Prints accuracy, ECE
and log loss of both on test data that neither has seen, then every score of the second. The network overfits, so that
both remedies help; one run on data this small does not decide between them. Takes about ten seconds.

    python plain_pytorch.py
"""

import copy

import torch
from sklearn.datasets import make_classification
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import calibrant as cal

torch.manual_seed(0)
features, classes = make_classification(12_000, n_informative=10, n_classes=5, n_clusters_per_class=4, random_state=0)
x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(classes)
x_test, y_test = x[2000:], y[2000:]

# A tenth of the training data is held out: the cross-entropy never sees it.
train_part, held_out_part = cal.training.interleaved_split(TensorDataset(x[:2000], y[:2000]), 0.1, seed=0)
train, held_out = (DataLoader(part, 100, shuffle=True) for part in (train_part, held_out_part))
x_held_out, y_held_out = next(iter(DataLoader(held_out_part, len(held_out_part))))

network = torch.nn.Sequential(torch.nn.Linear(20, 256), torch.nn.ReLU(), torch.nn.Linear(256, 5))
plain, calibrated_network = network, copy.deepcopy(network)  # the same initial weights

optimizer = torch.optim.Adam(plain.parameters(), lr=3e-3)
for _ in range(60):
    for inputs, target in train:
        loss = F.cross_entropy(plain(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
scaling = cal.posthoc.TemperatureScaling().fit(plain(x_held_out).detach(), y_held_out)

optimizer = torch.optim.Adam(calibrated_network.parameters(), lr=3e-3)
calibrated_loss = cal.training.CalibratedLoss(calibrated_network)
for _ in range(60):
    for (inputs, target), (held_out_inputs, held_out_target) in cal.training.interleave(train, held_out):
        loss = calibrated_loss(inputs, target, held_out_inputs, held_out_target)  # the line that differs
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
finished = calibrated_loss.finish(held_out)  # the temperature is now part of the last layer

with torch.no_grad():
    plain_logits, calibrated_logits = plain(x_test), calibrated_network(x_test)
scores = {
    "cross-entropy": cal.metrics.evaluate(logits=plain_logits, target=y_test),
    f"  + temperature {scaling.temperature_:.2f}": cal.metrics.evaluate(logits=scaling(plain_logits), target=y_test),
    "CalibratedLoss": cal.metrics.evaluate(logits=calibrated_logits, target=y_test),
}
print(f"{'10,000 test samples':22} accuracy     ECE  log loss")
for name, each in scores.items():
    print(f"{name:22} {each.accuracy:8.2%} {each.ece:7.2%} {each.log_loss:9.4f}")
print(f"\nCalibratedLoss ended with temperature {finished.temperature:.2f}. All its scores:\n")
print(scores["CalibratedLoss"])
