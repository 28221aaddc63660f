"""Which steps of a training use a held-out batch."""

# Held-out batches are used at every k-th step on average. The part of a step that is left out walks through the order
# of a loader that does not shuffle, so that each of its batches has its turn whatever their number.
WALK = 0.382


class Turns:
    """Counts steps, and says at which of them a held-out batch is used.

    Args:
        every: Use one at every k-th step at most.

    Attributes:
        step: Steps so far.
        due: Step from which on the next held-out batch is used; 0 before the first.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.step = 0
        self.due = 0.0

    def take(self, given: bool) -> bool:
        """Count a step, and return whether a held-out batch, if one is given, is used at it."""
        used = given and self.step >= self.due
        if used:
            self.due = self.due + self.every - WALK if self.every > 1 else self.step + 1
        self.step += 1
        return used
