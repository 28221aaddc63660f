"""`make bench`: the objectives against their published dense forms, forward and backward, in one run."""

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
from calibrant import numerics
from calibrant_lab.models.lenet import LeNet5

SIZES = [64, 128, 256, 512, 1024, 4096, 16384, 65536]
# Sixteen gigabytes of intermediate matrices are the point at which the dense forms stop being measured.
LARGEST_DENSE = 16384
STEP_HEADING = ["objective", "batch", "step with arrays", "step with tensors", "tensors / arrays"]
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


def small_step(objective: nn.Module, batch: int) -> Job:
    """A training step of a small network with an objective of a held-out batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, held_out = torch.randn(2, batch, 64).unbind()
    y, held_out_y = torch.randint(10, (2, batch)).unbind()

    def step() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + objective(model(held_out), held_out_y)).backward()
        optimizer.step()

    return step


def of_tensors(job: Job) -> Job:
    """The same job without arrays for the sums over samples."""
    readable = numerics.readable

    def of_tensors() -> None:
        # A patch by unittest.mock would take as long as the job.
        setattr(numerics, "readable", lambda _: False)  # noqa: B010 (mypy: a function is no variable)
        try:
            job()
        finally:
            setattr(numerics, "readable", readable)  # noqa: B010

    return of_tensors


def whole_steps() -> list[list[str]]:
    """Rows of the third table: what arrays gain over tensors in a whole training step."""
    rows = []
    modules: dict[str, nn.Module] = {"ESD": cal.ESDLoss(), "MMCE": cal.MMCELoss()}
    torch.set_num_threads(1)
    for name, module in modules.items():
        for batch in (64, 512):
            status(f"a step with {name}, batch {batch}")
            step = small_step(module, batch)
            timing = take_turns([step, of_tensors(step)], seconds=5.0, clock=time.process_time)
            rows.append([name, f"{batch}", *map(duration, timing.seconds), f"{timing.ratios[0]:.2f}x"])
    torch.set_num_threads(THREADS)
    status("")
    return rows


def whole_steps_text(rows: list[list[str]]) -> str:
    """The third table, with what it means."""
    return (
        "## Arrays against tensors in a whole training step\n\n"
        "The sums over samples of ESD and MMCE take arrays where values can be read, and else tensors "
        "(`on_arrays` in `numerics.py`). A step of a network with layers of 64, 256 and 10, cross-entropy of one batch "
        "and the objective of another, with one thread: medians of processor time, and the median of their ratios.\n\n"
        + markdown(STEP_HEADING, rows) + "\n"
    )  # fmt: skip


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
    step_rows = whole_steps()
    show("Arrays against tensors in a whole training step", STEP_HEADING, step_rows)
    text = (
        f"# {title}\n\n"
        f"Measured by `make bench` on {machine()}. Float32 input. Times and speed-up are those of one thread; the next "
        "column has the speed-up when torch may use all of them, which helps the dense forms. Medians, and medians of "
        "ratios, of runs taken in turns; memory is the rise of the peak of a fresh process. The dense forms are "
        "transcriptions of the ESD paper's pseudocode and of MMCE's definition (`benchmarks/peers.py`), not run above "
        f"N = {LARGEST_DENSE:,}.\n\n{markdown(heading, rows)}\n\n{markdown(single_heading, single_rows)}\n\n"
        f"{whole_steps_text(step_rows)}"
    )
    finish("objectives", text, broken + more_broken)


if __name__ == "__main__":
    main()
