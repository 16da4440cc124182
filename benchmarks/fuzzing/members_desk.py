"""Targets at the desk for members: what they ask for there, what it answers, and the records that it signs."""

import functools
import time
from collections.abc import Iterator

from benchmarks.fuzzing.swarm_sides import SWARM, Sides, Writer, at_once, reader_of, sized
from benchmarks.fuzzing.trial import Target
from dtfm_coordinator.serve.member_desk import MemberDesk
from dtfm_coordinator.serve.model_shelf import ShelvedModel
from dtfm_protocol.control.contribution_record import ContributionRecord, ContributionStatement
from dtfm_protocol.control.member_requests import (
    CONTRIBUTION,
    MODEL,
    DeskAnswer,
    DeskRequest,
    WantPart,
    checked,
    receive_answer,
    receive_want,
)
from dtfm_protocol.errors import Refused, UserError

ENDS_EARLY = (Refused, EOFError)


def desk_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    record = _record(sides, _statement(sides).model_dump_json())
    yield from _requests(sides, record)
    offered = _shelved(sides).offered
    answers = (DeskAnswer(record=record), DeskAnswer(model=offered, newest=offered.step))
    yield Target("desk's answer", functools.partial(_answered, sides), _texts(*answers), ENDS_EARLY)
    yield Target("contribution record", _read, _texts(record), (*ENDS_EARLY, UserError))
    said = record.statement.encode()
    yield Target("contribution record, signed", functools.partial(_signed_anew, sides), (said,), ENDS_EARLY)


def _requests(sides: Sides, record: ContributionRecord) -> Iterator[Target]:
    """Yield what the coordinator reads."""
    desk, model = MemberDesk(lambda _: record), _shelved(sides)

    def asked(data: bytes) -> object:
        return sides.wait(desk.serve(sides.liar.peer_id, reader_of(sized(data), sides.loop), Writer()))  # type: ignore[arg-type]

    def wanted(data: bytes) -> object:
        want = at_once(receive_want(reader_of(sized(data), sides.loop)))
        return model.read(want) if want is not None else None

    yield Target("desk's request", asked, _texts(DeskRequest(kind=MODEL), DeskRequest(kind=CONTRIBUTION)), ENDS_EARLY)
    want = WantPart(name="config.json", offset=1, size=1)
    yield Target("desk's request for part of a file", wanted, _texts(want), ENDS_EARLY)


def _texts(*messages: DeskAnswer | DeskRequest | WantPart | ContributionRecord) -> tuple[bytes, ...]:
    return tuple(message.model_dump_json().encode() for message in messages)


def _statement(sides: Sides) -> ContributionStatement:
    return ContributionStatement(
        swarm=SWARM,
        job="demo",
        peer=sides.node.peer_id,
        name="Ann's PC",
        tokens=1 << 20,
        share=0.25,
        seconds=3600.5,
        steps=128,
        first_step=1,
        last_step=200,
        layers=((0, 2), (3, 4)),
        of_layers=4,
        at=time.time(),
    )


def _record(sides: Sides, statement: str) -> ContributionRecord:
    """Return a statement, whatever it says, with the coordinator's signature under it."""
    signature = sides.owner.sign(b"dtfm/1/contribution:" + statement.encode())
    return ContributionRecord(statement=statement, signature=signature.hex(), certificate=sides.authority.hex())


def _shelved(sides: Sides) -> ShelvedModel:
    folder = sides.folder / "model"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "README.md"):
        (folder / name).write_text("{}", encoding="utf-8")
    return ShelvedModel.of(folder, "demo", 200)


def _answered(sides: Sides, data: bytes) -> object:
    answer = at_once(receive_answer(reader_of(sized(data), sides.loop)))
    if answer.model is not None:
        checked(answer.model)
    if answer.record is not None:
        answer.record.said_by(sides.owner.peer_id)
    return answer


def _read(data: bytes) -> object:
    return ContributionRecord.parsed(data).opened()


def _signed_anew(sides: Sides, data: bytes) -> object:
    try:
        record = _record(sides, data.decode())
    except ValueError:
        raise Refused("no text, or too long a one for a record") from None
    return record.said_by(sides.owner.peer_id)
