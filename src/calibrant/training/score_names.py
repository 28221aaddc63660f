"""Names of logged scores: ``train_nll``, ``validation_ece`` and so on, which may be part of a file name."""

from collections.abc import Mapping


def with_current_names(scores: Mapping[str, float]) -> dict[str, float]:
    """Return scores under their current names; histories and checkpoints of earlier versions have a slash in them.

    Example:
        >>> with_current_names({"epoch": 0, "validation/ece": 0.1, "test_ece": 0.2})
        {'epoch': 0, 'validation_ece': 0.1, 'test_ece': 0.2}
    """
    return {name.replace("/", "_", 1): value for name, value in scores.items()}
