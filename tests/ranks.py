"""Two processes that talk to each other, as on two devices."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Any

import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes


def free_port() -> int:
    """A port of this machine at which a process group may begin."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def prepared_processes() -> ForkServerContext:
    """Processes that have imported torch and Lightning: one server does so once, and they are forks of it."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["pytest", "hypothesis", "lightning", "calibrant.training.lightning"])
    return server


def on_two_ranks(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, *arguments)``, which begins a process group, in two new processes; raise what either raised."""
    prepared_processes()
    start_processes(_work_and_leave, args=(work, arguments), nprocs=2, start_method="forkserver")


def _work_and_leave(rank: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    work(rank, *arguments)
    dist.barrier()
    dist.destroy_process_group()
    # Models and loaders may still hold the group, whose threads abort the process if they outlive the interpreter
    # (pytorch/pytorch#179291). The work is done and written, so the interpreter need not be taken down.
    os._exit(0)
