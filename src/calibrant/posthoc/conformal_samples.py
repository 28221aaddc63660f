"""How many samples a conformal threshold needs, and how far coverage may be off with as many as there are."""

import math
from collections.abc import Sequence

from calibrant.posthoc.conformal_scores import place_of_quantile
from calibrant.posthoc.notices import counted

# Width of the 90 % range of the coverage above which a fit gives a warning: 5 points to each side.
WIDEST = 0.1
NAMED = 5  # classes or groups that a warning names


def fewest_samples(alpha: float) -> int:
    r"""Smallest number of samples with a finite threshold: :math:`\lceil 1/\alpha \rceil - 1`, at least 1."""
    return max(1, math.ceil(1 / alpha - 1e-9) - 1)


def coverage_range(samples: int, alpha: float) -> tuple[float, float]:
    r"""5 % and 95 % quantiles of the coverage of a threshold from n samples; (1, 1) if it is infinite.

    Over draws of the n samples, the coverage of all future ones is Beta distributed with parameters
    :math:`n + 1 - l` and :math:`l = \lfloor (n+1)\alpha \rfloor` if no scores tie, and larger if they do (Vovk,
    "Conditional validity of inductive conformal predictors", ACML 2012).

    Example:
        >>> from calibrant.posthoc.conformal_samples import coverage_range
        >>> [round(end, 3) for end in coverage_range(1000, 0.1)]
        [0.884, 0.915]
    """
    from scipy.special import betaincinv

    place = place_of_quantile(samples, alpha)
    if place > samples:
        return 1.0, 1.0
    low, high = (float(betaincinv(place, samples + 1 - place, q)) for q in (0.05, 0.95))
    return low, high


def enough_samples(alpha: float) -> int:
    """About how many samples bring the 90 % range of the coverage within 5 points of its centre."""
    return max(fewest_samples(alpha), math.ceil(alpha * (1 - alpha) * (2 * 1.645 / WIDEST) ** 2))


def doubts(counts: Sequence[int], names: Sequence[object] | None, alpha: float, kind: str) -> list[str]:
    """Warnings about thresholds from too few samples.

    Args:
        counts: Number of samples of each threshold.
        names: Class or group of each threshold; None if there is one threshold for all.
        alpha: Share of samples whose set may miss the right class.
        kind: ``"class"`` or ``"group"``.
    """
    ranges = [coverage_range(count, alpha) for count in counts]
    infinite = [place for place, count in enumerate(counts) if place_of_quantile(count, alpha) > count]
    wide = [place for place, (low, high) in enumerate(ranges) if high - low > WIDEST]
    needs = f"a threshold for alpha={alpha:g} needs at least {counted(fewest_samples(alpha), 'sample')}"
    remedy = f"about {enough_samples(alpha)} samples give +-5 points"
    if names is None:
        (count,) = counts
        start = f"conformal sets from {counted(count, 'sample')}:"
        if infinite:
            return [
                f"{start} {needs}, so every set must hold all classes; fit on more samples, or set alpha to "
                f"{_up(1 / (count + 1))} or more"
            ]
        text = f"{start} at alpha={alpha:g}, 90 % of such fits cover between {_percent(ranges[0])}; {remedy}"
        return [text] if wide else []
    found = []
    of_all = f"of {len(counts)} {'classes' if kind == 'class' else 'groups'}"
    if infinite:
        listed = _listed([f"{names[place]!r} ({counted(counts[place], 'sample')})" for place in infinite])
        effect = "every set must hold them" if kind == "class" else "their sets must hold all classes"
        found.append(
            f"conformal sets: {len(infinite)} {of_all} {_have(infinite)} too few samples: {listed}; {needs}, so "
            f"{effect}; fit on more samples, raise alpha, or use coverage='marginal'"
        )
    if wide:
        listed = _listed(
            [f"{names[at]!r} ({counted(counts[at], 'sample')}, between {_percent(ranges[at])})" for at in wide]
        )
        found.append(
            f"conformal sets: {len(wide)} {of_all} {_have(wide)} few samples, and 90 % of such fits at "
            f"alpha={alpha:g} cover: {listed}; {remedy}"
        )
    return found


def unseen(counts: Sequence[int], names: Sequence[object]) -> list[str]:
    """A warning about classes without samples, whose coverage a marginal threshold says nothing about.

    Args:
        counts: Number of samples of each class.
        names: Label of each class.
    """
    absent = [place for place, count in enumerate(counts) if count == 0]
    if not absent:
        return []
    these = "this class" if len(absent) == 1 else "these classes"
    return [
        f"conformal sets: {len(absent)} of {len(counts)} classes {_have(absent)} no samples: "
        f"{_listed([repr(names[place]) for place in absent])}; coverage holds on average, but nothing is known about "
        f"{these}; fit on samples of all classes, or use coverage='class-conditional', whose sets hold {these}"
    ]


def _have(several: list[int]) -> str:
    return "has" if len(several) == 1 else "have"


def _percent(ends: tuple[float, float]) -> str:
    return f"{100 * ends[0]:.1f} % and {100 * ends[1]:.1f} %"


def _up(alpha: float) -> str:
    """Three digits, rounded up: a smaller alpha would not do."""
    return f"{math.ceil(alpha * 1000 - 1e-9) / 1000:g}"


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(items[:NAMED]) + more
