"""A figure as inline SVG: it uses the colours of the page, keeps text as text, and has unique ids."""

import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant.report.style import ACCENT, FAINT, GAP, INK, MUTED, PAPER, house_style

VARIABLES = {
    INK: "--ink", MUTED: "--muted", FAINT: "--faint", PAPER: "--paper", ACCENT: "--accent", GAP: "--gap"
}  # fmt: skip
NAMESPACE = re.compile(r"^\{[^}]*\}")
# Reference to another element: a clip path in a style, or a marker that is used again.
REFERENCE = re.compile(r"(?<=url\(#)\w+|(?<=^#)\w+$")
FAMILY = re.compile(r"font-family: [^;]*; ?")
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """Turn a figure into an ``<svg>`` element.

    Args:
        figure: Figure to convert.
        name: Prefix of every id inside, so that ids are unique on a page.
        label: Description of the figure for screen readers.

    Example:
        >>> from matplotlib.figure import Figure
        >>> print(inline_svg(Figure(figsize=(1, 1)), "empty", "Nothing & more")[:80])
        <svg viewBox="0 0 72 72" role="img" aria-label="Nothing &amp; more"><g><g><path
    """
    drawn = io.StringIO()
    with house_style(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(drawn.getvalue())  # noqa: S314 (we have just written it ourselves)
    _strip(root)
    used = {match for element in root.iter() for value in element.attrib.values() for match in REFERENCE.findall(value)}
    for element in root.iter():
        _adopt(element, name, used)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 (ElementTree escapes text)


def _strip(root: ElementTree.Element) -> None:
    """Remove metadata, and style rules, which would apply to the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            # The tag of a comment is a function.
            tag = NAMESPACE.sub("", child.tag) if isinstance(child.tag, str) else "comment"
            if tag in ("metadata", "style", "comment") or (tag == "defs" and _only_style(child)):
                parent.remove(child)


def _only_style(element: ElementTree.Element) -> bool:
    return all(NAMESPACE.sub("", child.tag) == "style" for child in element)


def _adopt(element: ElementTree.Element, name: str, used: set[str]) -> None:
    element.tag = NAMESPACE.sub("", element.tag)
    element.tail = None if element.tail is None or not element.tail.strip() else element.tail
    element.text = None if element.text is None or not element.text.strip() else element.text
    attributes = {}
    for key, value in element.attrib.items():
        key = NAMESPACE.sub("", key)
        if key == "id":
            if value in used:
                attributes[key] = f"{name}-{value}"
            continue
        if key == "style":
            # The page sets the font; colours become those of its scheme.
            value = FAMILY.sub("", value)
            for colour, variable in VARIABLES.items():
                value = value.replace(colour, f"var({variable})")
        if key in ("d", "points"):
            value = " ".join(LONG_NUMBER.sub(_shorter, value).split())
        attributes[key] = REFERENCE.sub(rf"{name}-\g<0>", value)
    element.attrib = attributes


def _shorter(number: re.Match[str]) -> str:
    """Round to a hundredth of a point, finer than any screen."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
