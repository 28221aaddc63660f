"""Names of models come from files: what of them can stand on a page or in a figure."""

import unicodedata

# They join letters in Persian and Hindi, and people in emoji.
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def clean(name: str) -> str:
    r"""A name without the characters that show nothing and change how others are shown.

    Control characters and line ends become spaces, those that turn the direction of writing go, and what UTF-8 or XML
    cannot hold becomes a replacement character.

    Example:
        >>> clean("resnet\u202e\x1b[31m\n50"), clean("\u202e")
        ('resnet [31m 50', 'unnamed')
    """
    return " ".join("".join(map(_shown, name)).split()) or "unnamed"


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cs" or ord(character) & 0xFFFE == 0xFFFE:
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category == "Cf" and character not in JOINERS else character
