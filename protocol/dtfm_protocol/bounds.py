"""Bounds of what others may write: one vocabulary of types for the fields of messages, records and files.

A number fits where it goes, a collection has an end, and a text holds nothing that acts on a terminal or hides what it
says. All of it is decided where bytes are parsed, so that nobody behind has to think of it.
"""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, Field

MOST_UINT32 = (1 << 32) - 1
"""Largest number in a frame's header, which has 32 bits for a plan's version, a step and an index."""
MOST_INT64 = (1 << 63) - 1
MOST_PEERS = 20_000
"""Peers of which one message may tell; as many as a view may have."""
MOST_STAGES = 4096
MOST_MICRO_BATCHES = 1 << 16
"""Micro-batches of a step or of an evaluation."""
MOST_BUCKETS = 1 << 16
"""Buckets of a stage's gradients: a frame's header has 16 bits for a bucket's number."""
FIRST_SHARED_BUCKET = 1 << 15
"""Number of the first bucket of parameters that first and last stage share (tied embeddings)."""
MOST_ROWS = 1 << 16
"""Rows of metrics in one message."""
MOST_TENSORS = 1 << 18
"""Tensors of one state."""
MOST_AMOUNT = 1e20
"""Largest loss or gradient norm of a whole step; what is larger has diverged, or is made up."""
PEER_NAME_LIMIT = 128
"""Characters of the longest peer id."""
NICKNAME_LIMIT = 32
"""Characters of the longest name that a person gives a machine."""
SEEN_LIMIT = 256
"""Members of the greatest set that a stranger's words may make somebody keep, where each word costs a new key."""


def printable(text: str) -> str:
    """Return `text` on one line, with whatever does not print as itself replaced.

    That is what moves a cursor or changes colours (control characters, escape sequences), turns the order of letters
    round (bidirectional controls), or is not seen at all (zero-width and unassigned characters).
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def nickname(text: str) -> str:
    """Return what of `text` may stand as a person's name for a machine: letters, digits, spaces and `-_.'`, no more
    than `NICKNAME_LIMIT`, so that it cannot be taken for anything else that stands on the line."""
    kept = "".join(char for char in unicodedata.normalize("NFKC", text) if char.isalnum() or char in " -_.'")
    return " ".join(kept.split())[:NICKNAME_LIMIT].strip()


def _printing(name: str) -> str:
    """Return a name that prints as itself; one that does not is refused, for two names must not become one."""
    if not name.isprintable():
        raise ValueError("a name with characters that do not print")
    return name


Version = Annotated[int, Field(ge=0, le=MOST_UINT32)]
"""Version of a plan, from 1; 0: none."""
Step = Annotated[int, Field(ge=0, le=MOST_UINT32)]
"""Number of a training step, from 1; 0: the initial weights."""
Index = Annotated[int, Field(ge=0, le=MOST_UINT32)]
"""Number of a micro-batch, or of a stage."""
Count = Annotated[int, Field(ge=0, le=MOST_INT64)]
"""A number of bytes, tokens or messages."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Time = Annotated[float, Field(ge=-1e12, le=1e12)]
"""Unix seconds."""
Loss = Annotated[float, Field(ge=-MOST_AMOUNT, le=MOST_AMOUNT)]
"""A loss, in nats."""
Norm = Annotated[float, Field(ge=0, le=MOST_AMOUNT)]
"""Norm of a gradient."""
Text = Annotated[str, Field(max_length=500), AfterValidator(printable)]
"""A line for people."""
Label = Annotated[str, Field(max_length=128), AfterValidator(printable)]
"""A few words for people, e.g. the name of a device."""
ProductVersion = Annotated[str, Field(max_length=32), AfterValidator(printable)]
"""Version of the program that somebody runs, as it says; "": it does not say."""
Nickname = Annotated[str, Field(max_length=8 * NICKNAME_LIMIT), AfterValidator(nickname)]
"""A person's name for a machine, shown beside the end of its peer id and never in its place: anybody may take any."""
PeerName = Annotated[str, Field(max_length=PEER_NAME_LIMIT), AfterValidator(_printing)]
"""A peer id in a message, before anybody has checked that it is one."""
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
"""An Ed25519 signature in hexadecimal digits."""
Session = Annotated[str, Field(max_length=64), AfterValidator(_printing)]
"""Random text by which one run of a program is told from another."""
Address = Annotated[str, Field(max_length=256), AfterValidator(_printing)]
"""A multiaddress in a message, before anybody has checked that it is one."""
Addresses = Annotated[tuple[Address, ...], Field(max_length=16)]
"""Multiaddresses of one peer."""
Port = Annotated[int, Field(ge=1, le=65535)]
"""A TCP port."""
