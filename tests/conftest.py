"""Settings of the process that every test needs, and fixtures that several folders use."""

import gc
import os
from collections import Counter
from collections.abc import Iterator

import pytest

# Some virtual machines report AMX and do not have it. oneDNN 3.12, in torch 2.13, believes them and dies of an illegal
# instruction in the first bfloat16 matrix product. It reads this when it is first used, and so do child processes.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not ask for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but the first cases of a test with ``slow_after(count)`` as slow."""
    seen = Counter[tuple[pytest.Item | pytest.Collector | None, str]]()
    for item in items:
        if (limit := item.get_closest_marker("slow_after")) and isinstance(item, pytest.Function):
            test = item.parent, item.originalname
            seen[test] += 1
            if seen[test] > limit.args[0]:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of garbage collections, which take a twentieth of the time otherwise."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let it be collected at the end."""
    gc.unfreeze()


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """No graphs of other tests, which count towards the limit of compilations."""
    import torch  # after the setting above

    torch.compiler.reset()
    yield
    torch.compiler.reset()
