"""What members ask of a coordinator's desk at its entrance, and its answers.

A member that has shown its credential chooses the desk by the name `DESK` in the TLS handshake (ALPN); who names
nothing comes to the broker. One connection is one request.
"""

import asyncio
from typing import Annotated

from pydantic import Field

from dtfm_protocol.bounds import Count, Label, Step, Text
from dtfm_protocol.control.contribution_record import ContributionRecord
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.enrolment import receive_enrolment, send_enrolment
from dtfm_protocol.job.resolved_job import Sha256
from dtfm_protocol.schema import Message

DESK = "dtfm-desk/1"
"""Name of the desk in a TLS handshake."""
CONTRIBUTION, MODEL = "contribution", "model"
"""Kinds of requests."""
REQUEST_LIMIT = 1 << 12
"""Bytes of the largest request."""
ANSWER_LIMIT = 1 << 20
"""Bytes of the largest answer, but for the pieces of files."""
PIECE_LIMIT = 1 << 20
"""Bytes of a file that one request asks for, at most."""
MOST_FILES = 1024
"""Files that a model may have."""
ModelFileName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.(json|safetensors|md|txt|model|jinja)$", max_length=200)
]
"""Plain name of a file of a model, which neither leads out of a folder nor holds a program."""


class DeskRequest(Message):
    """A member's request."""

    kind: Label
    """One of those above; what a later version may ask for is answered with a refusal."""


class ModelFile(Message):
    """A file of a model, as `transformers` loads it."""

    name: ModelFileName
    bytes: Count
    sha256: Sha256


class OfferedModel(Message):
    """A model that can be fetched, file by file, over the connection that has asked for it."""

    job: Label
    """The job's name."""
    step: Step
    """The last step that it includes."""
    files: Annotated[tuple[ModelFile, ...], Field(min_length=1, max_length=MOST_FILES)]


class DeskAnswer(Message):
    """The desk's answer to a request: what was asked for, or why there is none."""

    refused: Text = ""
    """Reason, for people; "" where there is what was asked for."""
    later: bool = False
    """Whether asking again in a while may bring it."""
    record: ContributionRecord | None = None
    model: OfferedModel | None = None
    newest: Step | None = None
    """Of a model: the step of the newest one that can be had, now or once it is written out."""


class WantPart(Message):
    """A request for bytes of a file of the offered model; as many follow as were asked for, or the connection ends."""

    name: ModelFileName
    offset: Count
    size: Annotated[int, Field(gt=0, le=PIECE_LIMIT)]


async def receive_request(reader: asyncio.StreamReader) -> DeskRequest:
    """Read a member's request. Raises Refused and EOFError as `receive_enrolment`."""
    return await receive_enrolment(reader, DeskRequest, REQUEST_LIMIT)


async def receive_answer(reader: asyncio.StreamReader) -> DeskAnswer:
    """Read the desk's answer. Raises Refused and EOFError as `receive_enrolment`."""
    return await receive_enrolment(reader, DeskAnswer, ANSWER_LIMIT)


async def receive_want(reader: asyncio.StreamReader) -> WantPart | None:
    """Read a request for part of a file; None: the member wants no more. Raises Refused as `receive_enrolment`."""
    try:
        return await receive_enrolment(reader, WantPart, REQUEST_LIMIT)
    except EOFError:
        return None


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Write a request or an answer behind its length."""
    send_enrolment(writer, message)


def checked(offered: OfferedModel) -> OfferedModel:
    """Return an offer whose files all have names of their own, also where a disk does not tell small letters from
    capitals.

    Raises:
        Refused: two have one name.
    """
    if len({file.name.lower() for file in offered.files}) != len(offered.files):
        raise Refused("a model of which two files have one name")
    return offered
