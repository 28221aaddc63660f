"""Notices about a fit: what is doubtful about it, with numbers and a remedy."""


class FitWarning(UserWarning):
    """A post-hoc fit that is doubtful: too few samples, a class without any, or worse than doing nothing."""


def counted(several: int, word: str) -> str:
    """A number and its noun.

    Example:
        >>> counted(1, "sample"), counted(2000, "sample")
        ('1 sample', '2,000 samples')
    """
    return f"{several:,} {word}{'s' if several != 1 else ''}"
