"""The style of all figures: colours, letters, canvas, legend, axes that agree, and inline SVG for a page."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from calibrant.report.formats import clean

# Blue and orange differ for every common colour vision. A page replaces them with its own colours.
INK, MUTED, FAINT, PAPER = "#1c2733", "#5a6775", "#d9e0e6", "#ffffff"
ACCENT, GAP = "#1b62b5", "#c8541a"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.2,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.4,
}
VARIABLES = {
    INK: "--ink", MUTED: "--muted", FAINT: "--faint", PAPER: "--paper", ACCENT: "--accent", GAP: "--gap"
}  # fmt: skip
NAMESPACE = re.compile(r"^\{[^}]*\}")
FAMILY = re.compile(r"font-family: [^;]*; ?")
STYLE_ELEMENT = "{http://www.w3.org/2000/svg}style"
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
# 4.7 inches are 338 points, about the width of a phone: letters keep their size there.
WIDTH = 4.7


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save in our style, without changing the user's settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def legend_above(figure: Figure, title: str | None, *handles: Line2D | Patch) -> None:
    """Put the legend between title and axes, where it hides nothing, on as many lines as its width needs."""
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=list(handles), loc="outside upper left", ncols=columns, alignment="left", borderpad=0,
            borderaxespad=0.3,
        )  # fmt: skip
        if title is not None:
            legend.set_title(literal(title), prop=FontProperties(size=10.5, weight="bold"))
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def percent_ticks(decimals: int = 0) -> PercentFormatter:
    """Shares on an axis as percent."""
    return PercentFormatter(1, decimals=decimals, symbol=" %")


def same_axes(figures: Sequence[Figure], *, y: bool = True) -> None:
    """Give the axes of figures that stand side by side the same limits, those that show all of them."""
    for row in zip(*(figure.axes for figure in figures), strict=True):
        for name in ("xlim", "ylim") if y else ("xlim",):
            lows, highs = zip(*(getattr(axes, f"get_{name}")() for axes in row), strict=True)
            for axes in row:
                axes.set(**{name: (min(lows), max(highs))})


def literal(text: str) -> str:
    """A name for a figure: a dollar sign in it is a dollar sign, not mathematics."""
    return clean(text).replace("$", r"\$")


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """Turn a figure into an ``<svg>`` element, with ids unique by its name, and a label for screen readers."""
    drawn = io.StringIO()
    with house_style(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            drawn, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    root = ElementTree.fromstring(drawn.getvalue())  # noqa: S314 (we have just written it ourselves)
    for element in list(root.iter()):
        for rules in element.findall(STYLE_ELEMENT):  # they would apply to the whole page
            element.remove(rules)
        element.tag = NAMESPACE.sub("", element.tag)
        element.attrib = {NAMESPACE.sub("", key): _adopted(value) for key, value in element.attrib.items()}
        if element.tag == "g":
            element.attrib.pop("id", None)  # nothing refers to groups, and their ids are those of other figures
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 (ElementTree escapes text)


def _adopted(value: str) -> str:
    """An attribute with the font and the colours of the page, and numbers to a hundredth of a point."""
    value = FAMILY.sub("", value)
    for colour, variable in VARIABLES.items():
        value = value.replace(colour, f"var({variable})")
    return LONG_NUMBER.sub(lambda number: f"{round(float(number[0]), 2):g}", value)
