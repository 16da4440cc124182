"""Plain words for what pydantic says of a value that does not fit, in files, messages and options alike."""

from typing import Final

_PLAIN: Final = {
    "Value error, ": "",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    "Input should be": "should be",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


def plain(text: str) -> str:
    """Return a fault in words that need no knowledge of programs."""
    for technical, said in _PLAIN.items():
        text = text.replace(technical, said)
    return text
