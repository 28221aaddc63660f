"""`make bench`: fitting temperature and vector scaling against their peers, at the likelihood each reaches."""

import importlib
import math
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Job, machine, peak_extra_megabytes, take_turns
from benchmarks.tables import duration, finish, markdown, memory, show, status, times
from calibrant.posthoc import TemperatureScaling, VectorScaling

SIZES = [(10_000, 10), (10_000, 100), (50_000, 1000)]
# A peer that needs longer than this for one fit is not made to run several times.
PATIENCE = 10.0
Fit = Callable[[], float]


def data(samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Float32 logits, two and a half times as sure as they should be, and labels."""
    generator = torch.Generator().manual_seed(samples + classes)
    honest = torch.randn(samples, classes, generator=generator) * 2
    target = torch.multinomial(honest.softmax(1), 1, generator=generator).squeeze(1)
    return honest * 2.5, target


def nll(logits: Tensor, target: Tensor, scale: Tensor | float, shift: Tensor | float = 0.0) -> float:
    """Mean negative log-likelihood of scaled and shifted logits, in float64."""
    total = 0.0
    for part, labels in zip(logits.split(1000), target.split(1000), strict=True):
        total += float(F.cross_entropy(part.double() * scale + shift, labels, reduction="sum"))
    return total / len(logits)


def ours(logits: Tensor, target: Tensor) -> Fit:
    """Calibrant, from validation to temperature."""
    return lambda: TemperatureScaling(strict=True).fit(logits, target).temperature_


def scikit_learn(logits: Tensor, target: Tensor) -> Fit:
    """The fitter inside ``CalibratedClassifierCV(method="temperature")``, without the cross-validation around it."""
    fitter = importlib.import_module("sklearn.calibration")._TemperatureScaling
    return lambda: 1 / float(fitter().fit(logits.numpy(), target.numpy()).beta_)


def netcal(logits: Tensor, target: Tensor) -> Fit:
    """Takes probabilities, made beforehand in float64: its finite differences vanish in float32, and T stays 1."""
    fitter = importlib.import_module("netcal.scaling").TemperatureScaling
    probabilities, labels = logits.double().softmax(1).numpy(), target.numpy()

    def fit() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return 1 / float(fitter().fit(probabilities, labels, random_state=0).weights[0])

    return fit


def probmetrics(logits: Tensor, target: Tensor) -> Fit:
    """Bisection on the slope of the likelihood."""
    fitter = importlib.import_module("probmetrics.calibrators.temperature_scaling").TemperatureScalingCalibrator
    given = importlib.import_module("probmetrics.distributions").CategoricalLogits(logits)
    return lambda: 1 / float(fitter().fit_torch(given, target).invtemp_)


def missing(peer: str, error: ImportError | AttributeError) -> str:
    """Why there is nothing to compare with: the peer is not there, or what we call is not where it was."""
    package = {"scikit-learn": "sklearn"}.get(peer, peer)
    absent = isinstance(error, ModuleNotFoundError) and error.name == package
    return "not installed" if absent else f"could not be called: {error}"


PEERS = {"scikit-learn": scikit_learn, "netcal": netcal, "probmetrics": probmetrics}


def compare(mine: Fit, theirs: Fit) -> tuple[float, float, float, float]:
    """Seconds of both, how many times ours goes into theirs, and the temperature they find."""
    start = time.perf_counter()
    temperature = theirs()
    once = time.perf_counter() - start
    if once <= PATIENCE:
        timing = take_turns([mine, theirs], seconds=3.0, turn=0.0)
        return timing.seconds[0], timing.seconds[1], timing.ratios[0], temperature
    seconds = take_turns([mine], seconds=3.0, turn=0.0).seconds[0]
    return seconds, once, once / seconds, temperature


def temperature_rows() -> tuple[list[list[str]], list[str]]:
    """Rows of the table of temperature scaling, and every promise that was not kept."""
    rows, broken = [], []
    for samples, classes in SIZES:
        logits, target = data(samples, classes)
        mine = ours(logits, target)
        best = nll(logits, target, 1 / mine())
        for name, peer in PEERS.items():
            size = f"{samples:,} x {classes:,}"
            status(f"temperature, {size}, {name}")
            try:
                theirs = peer(logits, target)
            except (ImportError, AttributeError) as error:
                reason = missing(name, error)
                rows.append([size, name, "", reason, "", f"{best:.7f}", ""])
                continue
            seconds, their_seconds, ratio, temperature = compare(mine, theirs)
            reached = nll(logits, target, 1 / temperature) if temperature > 0 else math.inf
            rows.append([
                size, name, duration(seconds), duration(their_seconds), times(ratio), f"{best:.7f}", f"{reached:.7f}",
            ])  # fmt: skip
            # To be faster than one that stops before the optimum is no promise.
            if ratio < 1 and reached < best + 1e-6:
                broken.append(f"temperature at {size}: {ratio:.2f}x the speed of {name}, promised to be faster")
            if best > reached + 1e-9:
                broken.append(f"temperature at {size}: NLL {best:.9f}, {name} has {reached:.9f}")
    status("")
    return rows, broken


def torch_lbfgs(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Vector scaling as it is usually written: torch's L-BFGS with a line search on all data at once."""
    scale, shift = torch.ones(logits.shape[1]), torch.zeros(logits.shape[1])
    parameters = [scale.requires_grad_(), shift.requires_grad_()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits * scale + shift, target)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call, unused-ignore]
    return scale.detach(), shift.detach()


def vector_rows() -> tuple[list[list[str]], list[str]]:
    """Rows of the table of vector scaling, and every promise that was not kept."""
    rows, broken = [], []
    for samples, classes in SIZES[:2]:
        size = f"{samples:,} x {classes:,}"
        status(f"vector, {size}")
        logits, target = data(samples, classes)
        timing = take_turns(
            [lambda: VectorScaling(strict=True).fit(logits, target), lambda: torch_lbfgs(logits, target)],  # noqa: B023
            seconds=5.0, turn=0.0,
        )  # fmt: skip
        fitted = VectorScaling(strict=True).fit(logits, target)
        best, reached = (
            nll(logits, target, fitted.map_.matrix, fitted.map_.shift),
            nll(logits, target, *torch_lbfgs(logits, target)),
        )
        rows.append([
            size, duration(timing.seconds[0]), duration(timing.seconds[1]), times(timing.ratios[0]),
            f"{best:.7f}", f"{reached:.7f}",
        ])  # fmt: skip
        if best > reached + 1e-6:
            broken.append(f"vector scaling at {size}: NLL {best:.9f}, torch's L-BFGS has {reached:.9f}")
    status("")
    return rows, broken


def largest_job() -> Job:
    """The largest fit, so that another process can make it."""
    return ours(*data(*SIZES[-1]))


def main() -> None:
    """Measure, print, write results/posthoc.md, and fail if a promise is not kept."""
    torch.set_num_threads(1)  # threads that wait for one another would measure the neighbours
    heading = ["logits", "peer", "ours", "theirs", "speed-up", "our NLL", "their NLL"]
    title = "Fitting temperature scaling against its peers"
    rows, broken = temperature_rows()
    show(title, heading, rows)
    vector_heading = ["logits", "ours", "torch L-BFGS", "speed-up", "our NLL", "their NLL"]
    more_rows, more_broken = vector_rows()
    show("Vector scaling", vector_heading, more_rows)
    extra = peak_extra_megabytes(largest_job)
    samples, classes = SIZES[-1]
    given = samples * classes * 4 / 2**20
    figure = f"Extra memory of a fit on {samples:,} x {classes:,} logits, which are {memory(given)}: {memory(extra)}"
    print(figure)
    if extra > given:
        broken.append(f"{figure}, promised less than the logits")
    text = (
        f"# {title}\n\nMeasured by `make bench` on {machine()}. Float32 logits; netcal takes "
        "probabilities, here in float64, since its finite differences vanish in float32. "
        "Medians, and medians of ratios, of fits in turns, including input checks; a peer that needs more than "
        f"{PATIENCE:g} s is fitted once. NLL is computed on the fitted data, in float64; "
        "a peer with a higher NLL stopped before the optimum, and its time says little.\n\n"
        f"{markdown(heading, rows)}\n\n{figure}.\n\n"
        "## Vector scaling\n\nAgainst torch's L-BFGS with strong Wolfe line search, on all data at once in float32.\n\n"
        f"{markdown(vector_heading, more_rows)}\n"
    )
    finish("posthoc", text, broken + more_broken)


if __name__ == "__main__":
    main()
