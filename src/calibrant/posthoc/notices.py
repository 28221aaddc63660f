"""Notices about a fit: what is doubtful about it, with numbers and a remedy."""


class FitWarning(UserWarning):
    """A post-hoc fit that is doubtful: too few samples, a class without any, or worse than doing nothing."""
