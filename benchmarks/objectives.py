"""`make bench`: the objectives against their published dense forms, forward and backward, in one run."""

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant as cal
from benchmarks.measure import Job, machine, peak_extra_megabytes, take_turns
from benchmarks.peers import esd_pseudocode, mmce_dense
from benchmarks.tables import duration, finish, markdown, memory, show, status, times
from calibrant.losses import known_gradient
from calibrant.numerics import readable
from calibrant_lab.models.lenet import LeNet5

SIZES = [64, 128, 256, 512, 1024, 4096, 16384, 65536]
# Sixteen gigabytes of intermediate matrices are the point at which the dense forms stop being measured.
LARGEST_DENSE = 16384
CLOSED_SIZES = [64, 512, 4096, 65536]
CLOSED_HEADING = ["objective", "N", "closed form", "plain torch", "plain / closed, 1 thread", "2 threads"]
THREADS = torch.get_num_threads()
Objective = Callable[[Tensor, Tensor], Tensor]
PEERS: dict[str, tuple[Objective, Objective]] = {
    "ESD": (cal.functional.esd, esd_pseudocode),
    "MMCE": (cal.functional.mmce, mmce_dense),
}
# What the project promises: at this N, at least this many times as fast as the dense form.
PROMISED = {("ESD", 64): 1.0, ("ESD", 512): 10.0, ("ESD", 4096): 300.0, ("MMCE", 512): 5.0}


def pairs(n: int) -> tuple[Tensor, Tensor]:
    """Confidences of an over-confident classifier, as a leaf with gradient, and their correctness."""
    generator = torch.Generator().manual_seed(n)
    confidence = 0.1 + 0.9 * torch.rand(n, generator=generator) ** 0.2
    correct = (torch.rand(n, generator=generator) < confidence - 0.05).float()
    return confidence.requires_grad_(), correct


def forward_and_backward(objective: Objective, n: int) -> Job:
    """A job that evaluates an objective and its gradient once."""
    confidence, correct = pairs(n)

    def job() -> None:
        torch.autograd.grad(objective(confidence, correct), confidence)

    return job


def objective_job(name: str, which: int, n: int) -> Job:
    """The same by name, so that another process can make it."""
    return forward_and_backward(PEERS[name][which], n)


def compare_sizes() -> tuple[list[list[str]], list[str]]:
    """Rows of the main table, and every promise that was not kept."""
    rows, broken = [], []
    work = [(name, n) for name in PEERS for n in SIZES]
    for done, (name, n) in enumerate(work):
        status(f"{done + 1} of {len(work)}: {name}, N = {n:,}")
        dense_runs = n <= LARGEST_DENSE
        jobs = [objective_job(name, which, n) for which in ((0, 1) if dense_runs else (0,))]
        torch.set_num_threads(1)
        timing = take_turns(jobs, seconds=3.0)
        torch.set_num_threads(THREADS)
        with_threads = take_turns(jobs, seconds=2.0).ratios if n <= 4096 else []
        ours, *dense = timing.seconds
        peaks = [peak_extra_megabytes(objective_job, name, which, n) for which in range(len(jobs))]
        ratio = timing.ratios[0] if dense else None
        if ratio is not None and ratio < PROMISED.get((name, n), 0.0):
            broken.append(f"{name} at N={n}: {ratio:.2f}x, promised {PROMISED[name, n]:g}x")
        rows.append([
            name, f"{n:,}", duration(ours), duration(dense[0]) if dense else "not run",
            times(ratio) if ratio is not None else "", times(with_threads[0]) if with_threads else "",
            memory(peaks[0]), memory(peaks[1]) if dense else "not run",
        ])  # fmt: skip
    status("")
    return rows, broken


def logits_job(objective: nn.Module, n: int, classes: int = 10) -> Job:
    """A job that evaluates a module and its gradient once."""
    generator = torch.Generator().manual_seed(n)
    logits = (3 * torch.randn(n, classes, generator=generator)).requires_grad_()
    target = torch.randint(classes, (n,), generator=generator)

    def job() -> None:
        torch.autograd.grad(objective(logits, target), logits)

    return job


def in_plain_torch(job: Job) -> Job:
    """The same job without the closed forms in NumPy."""

    def plain() -> None:
        # A patch by unittest.mock would take as long as the job.
        setattr(known_gradient, "readable", lambda _: False)  # noqa: B010 (mypy: a function is no variable)
        try:
            job()
        finally:
            setattr(known_gradient, "readable", readable)  # noqa: B010

    return plain


def closed_forms() -> list[list[str]]:
    """Rows of the third table: what the closed forms gain over plain torch, of pairs and of logits."""
    rows = []
    modules: dict[str, nn.Module] = {"ESD": cal.ESDLoss(), "MMCE": cal.MMCELoss()}
    work = [(name, n) for name in PEERS for n in CLOSED_SIZES]
    for done, (name, n) in enumerate(work):
        for what, job in (("pairs", objective_job(name, 0, n)), ("logits", logits_job(modules[name], n))):
            status(f"{done + 1} of {len(work)}: {name} of {what}, N = {n:,}")
            both = [job, in_plain_torch(job)]
            torch.set_num_threads(1)
            one = take_turns(both, seconds=2.0, clock=time.process_time)
            torch.set_num_threads(2)
            two = take_turns(both, seconds=2.0)
            torch.set_num_threads(THREADS)
            ratios = [f"{plain / closed:.2f}x" for closed, plain in (one.seconds, two.seconds)]
            rows.append([f"{name} of {what}", f"{n:,}", *map(duration, one.seconds), *ratios])
    status("")
    return rows


def closed_forms_apart() -> list[list[str]]:
    """:func:`closed_forms` in a process of its own, whose threads give up their core while they wait."""
    os.environ["OMP_WAIT_POLICY"] = "passive"  # read when torch is loaded
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        rows = pool.apply(closed_forms)
    del os.environ["OMP_WAIT_POLICY"]
    return rows


def closed_forms_text(rows: list[list[str]]) -> str:
    """The third table, with what it means."""
    return (
        "## Closed forms against plain torch\n\n"
        "ESD and MMCE, with their gradients, have closed forms in NumPy (`objectives/known_gradient.py`). Here they "
        "run against the same formulas in plain torch, in turns: forward and backward of float32 (confidence, correct) "
        "pairs, or of logits of 10 classes. With one thread, medians of processor time and their ratio; with two, the "
        "ratio of the medians of wall time, with `OMP_WAIT_POLICY=passive`. Without that, threads that wait for each "
        "other keep the cores busy, and on a machine that others use plain torch looks up to 200 times slower, which "
        "is no gain of the closed form.\n\n" + markdown(CLOSED_HEADING, rows) + "\n"
    )


def lenet_step(batch: int = 512) -> tuple[Job, Job]:
    """A LeNet5 training step, and ESDLoss from logits to gradient, at the same batch."""
    torch.manual_seed(0)
    model = LeNet5()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, target = torch.randn(batch, 1, 32, 32), torch.randint(10, (batch,))
    logits = model(images).detach().requires_grad_()
    esd: nn.Module = cal.ESDLoss()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), target).backward()
        optimizer.step()

    def objective() -> None:
        torch.autograd.grad(esd(logits, target), logits)

    return step, objective


def import_ratio() -> float:
    """Time to import Calibrant, torch included, over the time to import torch: median of fresh interpreters."""
    code = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); "
        "import calibrant; c = time.perf_counter(); print((c - a) / (b - a))"
    )
    command = [sys.executable, "-c", code]
    return statistics.median(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603
        for _ in range(7)
    )


def single_figures() -> tuple[list[list[str]], list[str]]:
    """Rows of the second table, and every promise that was not kept."""
    # Turn by turn: in training, too, the objective follows a step that has filled the caches with other things.
    after_step = take_turns(lenet_step(), seconds=10.0, turn=0.0)
    alone = take_turns(lenet_step(), seconds=5.0)
    million = peak_extra_megabytes(objective_job, "ESD", 0, 10**6)
    million_mmce = peak_extra_megabytes(objective_job, "MMCE", 0, 10**6)
    million_seconds = take_turns([objective_job("ESD", 0, 10**6)], seconds=3.0).seconds[0]
    imports = import_ratio()
    share, cold_share = alone.ratios[0], after_step.ratios[0]
    figures = [
        ("ESDLoss, logits to gradient, batch 512, 10 classes", duration(alone.seconds[1]), "", True),
        ("its share of a LeNet5 training step in torch's own layers", f"{share:.1%}", "< 2 %", share < 0.02),
        ("its share right after the step, with cold caches", f"{cold_share:.1%}", "", True),
        ("ESD of 1,000,000 samples with gradient: time", duration(million_seconds), "", True),
        ("ESD of 1,000,000 samples with gradient: extra memory", memory(million), "< 500 MB", million < 500),
        ("MMCE of 1,000,000 samples with gradient: extra memory", memory(million_mmce), "< 500 MB", million_mmce < 500),
        ("import calibrant over import torch", f"{imports:.2f}x", "<= 1.10x", imports <= 1.1),
    ]
    rows = [[what, value, promised] for what, value, promised, _ in figures]
    return rows, [f"{what}: {value}, promised {promised}" for what, value, promised, kept in figures if not kept]


def main() -> None:
    """Measure, print, write results/objectives.md, and fail if a promise is not kept."""
    heading = [
        "objective", "N", "ours", "dense", "speed-up", f"{THREADS} threads", "memory", "dense memory"
    ]  # fmt: skip
    title = "Forward + backward against the dense N x N form"
    rows, broken = compare_sizes()
    show(title, heading, rows)
    single_heading = ["figure", "measured", "promised"]
    single_rows, more_broken = single_figures()
    show("Single figures", single_heading, single_rows)
    closed_rows = closed_forms_apart()
    show("Closed forms against plain torch", CLOSED_HEADING, closed_rows)
    text = (
        f"# {title}\n\n"
        f"Measured by `make bench` on {machine()}. Float32 input. Times and speed-up are those of one thread; the next "
        "column has the speed-up when torch may use all of them, which helps the dense forms. Medians, and medians of "
        "ratios, of runs taken in turns; memory is the rise of the peak of a fresh process. The dense forms are "
        "transcriptions of the ESD paper's pseudocode and of MMCE's definition (`benchmarks/peers.py`), not run above "
        f"N = {LARGEST_DENSE:,}.\n\n{markdown(heading, rows)}\n\n{markdown(single_heading, single_rows)}\n\n"
        f"{closed_forms_text(closed_rows)}"
    )
    finish("objectives", text, broken + more_broken)


if __name__ == "__main__":
    main()
