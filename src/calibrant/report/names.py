"""Names of models, which come from files, made safe for a page or a figure."""

import unicodedata

# They join letters in Persian and Hindi, and people in emoji.
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def clean(name: str) -> str:
    r"""A name without characters that are invisible or change how others are shown.

    Control characters and line ends become spaces, characters that change the direction of writing are removed, and
    those that UTF-8 or XML cannot encode become a replacement character.

    Example:
        >>> clean("resnet\u202e\x1b[31m\n50"), clean("\u202e")
        ('resnet [31m 50', 'unnamed')
    """
    return " ".join("".join(map(_shown, name)).split()) or "unnamed"


def as_sentence(text: object) -> str:
    """What a result prints as, with a capital letter and a full stop.

    Example:
        >>> as_sentence("no change is detected")
        'No change is detected.'
    """
    words = str(text)
    return f"{words[0].upper()}{words[1:]}."


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cs" or ord(character) & 0xFFFE == 0xFFFE:
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category == "Cf" and character not in JOINERS else character
