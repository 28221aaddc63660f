"""The guard judges windows of steps, and allows for chance."""

import torch

from calibrant.losses import checks
from calibrant.training.guard import Guard


def window(right: int, samples: int) -> checks.Classification:
    target = torch.zeros(samples, dtype=torch.long)
    target[right:] = 1
    return checks.classification(torch.tensor([[1.0, 0.0]]).expand(samples, 2), target)


def test_a_lucky_window_of_few_samples_is_no_collapse() -> None:
    guard = Guard(on=False)
    for right in (38, 27):  # 95 % and 67.5 %, each with a standard error
        guard.add_training(window(right, 40))
        guard.close_window()
    assert not guard.warnings_
    for right in (380, 270):
        guard.add_training(window(right, 400))
        guard.close_window()
    assert "collapse" in guard.warnings_


def test_judging_twice_is_judging_once() -> None:
    guard = Guard(on=False)
    guard.told_of_epochs = True
    guard.add_held_out(window(30, 40))
    guard.add_training(window(30, 40))
    assert guard.judge() == guard.judge() == guard.close_window()
    assert guard.held_out.scores() is None
