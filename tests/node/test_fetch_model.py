"""The model comes home whole and checked, or it does not; what has come is not fetched twice."""

import asyncio
import contextlib
import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from dtfm_coordinator.serve.model_shelf import ModelShelf
from dtfm_node.commands.fetch_model import FetchModel, fetch_model
from dtfm_node.commands.model_download import ModelDownload, partial_folder
from dtfm_node.control.desk_client import DeskClient
from dtfm_protocol.control.member_requests import ModelFile, OfferedModel, WantPart
from dtfm_protocol.errors import Refused, UserError
from tests.harness.entrances import free_port
from tests.harness.event_loops import event_loop_policy
from tests.harness.manual_clock import ManualClock
from tests.harness.membership import OWNER, member_of
from tests.node.desk_guests import FILES, OpenDesk, Writer, at, keep_checkpoint, open_desk

__all__ = ["event_loop_policy"]  # a fixture


@contextlib.asynccontextmanager
async def shared(folder: Path, write: Writer) -> AsyncIterator[OpenDesk]:
    """The desk of a coordinator that shares the model of its newest checkpoint."""
    async with ModelShelf(folder, "tiny", write).open() as shelf, open_desk(shelf=shelf) as desk:
        yield desk


def fetch(desk: OpenDesk, out: Path, said: list[str], client: DeskClient | None = None) -> FetchModel:
    return FetchModel(client or desk.client(), out, said.append, lambda _: asyncio.sleep(0))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_a_member_fetches_the_model_of_the_newest_checkpoint(tmp_path: Path) -> None:
    """It waits while that is written out, which is done once; programs are no part of a model."""
    write, said = Writer(), list[str]()
    keep_checkpoint(tmp_path, 20)
    async with shared(tmp_path, write) as desk:
        await fetch(desk, tmp_path / "home" / "model", said).run()
        assert said[0] == "waiting: the coordinator is writing out the model after step 20"
        assert said[-1].startswith(f"the model of tiny after step 20 is in {tmp_path / 'home' / 'model'};")
        assert files_of(tmp_path / "home" / "model") == FILES
        await fetch(desk, tmp_path / "home" / "again", said).run()
        assert write.steps == [20]
        keep_checkpoint(tmp_path, 30)
        await fetch(desk, tmp_path / "newer", said).run()
        assert "waiting: the model after step 30 is being made ready" in said
        assert said[-1].startswith("the model of tiny after step 30"), "and not the one that was ready"
        assert write.steps == [20, 30]
        assert len(list((tmp_path / "shared-model").iterdir())) == 1, "the older one has gone"
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["again", "model"]


async def test_of_a_newer_model_that_does_not_come_it_is_said_that_there_is_one(tmp_path: Path) -> None:
    """It takes the older one, after a while, and knows that it is that; one that cannot be written out is none."""
    said, never, write = list[str](), asyncio.Event(), Writer()
    keep_checkpoint(tmp_path, 20)

    async def first_only(state_dir: Path, step: int, folder: Path) -> None:
        if step > 20:
            await never.wait()
        await write(state_dir, step, folder)

    async with ModelShelf(tmp_path, "tiny", first_only).open() as shelf, open_desk(shelf=shelf) as desk:
        await fetch(desk, tmp_path / "first", said).run()
        keep_checkpoint(tmp_path, 30)
        await fetch(desk, tmp_path / "second", said).run()
        assert "this is not the newest model: that after step 30 is not ready; ask again later" in said
        assert said[-1].startswith("the model of tiny after step 20")
        write.fault = "the disk is full"
        never.set()
        while shelf.newest != 20:  # noqa: ASYNC110 - a task in the background ends
            await asyncio.sleep(0)
        said.clear()
        await fetch(desk, tmp_path / "third", said).run()
        assert not any("step 30" in line for line in said)


async def test_without_leave_a_checkpoint_or_room_there_is_one_line(tmp_path: Path) -> None:
    out, said = tmp_path / "out", list[str]()
    async with open_desk() as desk:
        with pytest.raises(UserError, match=r"the owner does not share the model: .*\[sharing\]"):
            await fetch(desk, out, said).run()
    async with shared(tmp_path, Writer()) as desk:
        with pytest.raises(UserError, match="there is no checkpoint yet"):
            await fetch(desk, out, said).run()
    keep_checkpoint(tmp_path, 20)
    async with shared(tmp_path, Writer("the disk is full")) as desk:
        with pytest.raises(UserError, match="cannot write the model out"):
            await fetch(desk, out, said).run()
        assert list((tmp_path / "shared-model").iterdir()) == []
    identity, admission = member_of(OWNER)
    with pytest.raises(UserError, match=r"no coordinator of the swarm answers .*: the model is on its disk"):
        await fetch(desk, out, said, DeskClient(at(free_port()), identity, admission)).run()
    with pytest.raises(UserError, match="only members can fetch the model"):
        await fetch_model(tmp_path, None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(UserError, match="is there already"):
        fetch(desk, tmp_path / "full", said)
    assert not out.exists()


async def test_a_model_that_could_not_be_written_out_is_tried_again_after_a_while(tmp_path: Path) -> None:
    keep_checkpoint(tmp_path, 20)
    clock, write = ManualClock(), Writer("the disk is full")
    async with ModelShelf(tmp_path, "tiny", write, clock.now).open() as shelf, open_desk(shelf=shelf) as desk:
        for _ in range(2):
            with pytest.raises(UserError, match="cannot write the model out"):
                await fetch(desk, tmp_path / "out", []).run()
        assert write.steps == [20]
        write.fault = ""
        clock.skip(61.0)
        await fetch(desk, tmp_path / "out", []).run()
    assert files_of(tmp_path / "out") == FILES


async def test_one_member_fetches_once_at_a_time_and_who_asks_for_what_is_not_there_is_put_out(tmp_path: Path) -> None:
    keep_checkpoint(tmp_path, 20)
    alice, said = member_of(OWNER), list[str]()
    async with shared(tmp_path, Writer()) as desk:
        await fetch(desk, tmp_path / "first", said).run()
        async with desk.client(alice).visit(20.0) as one, desk.client(alice).visit(20.0) as other:
            assert (await one.ask("model")).model
            busy = await other.ask("model")
            assert busy.later
            assert "already" in busy.refused
            for wrong in (
                WantPart(name="secret.json", offset=0, size=1),
                WantPart(name="config.json", offset=2, size=1),
            ):
                async with desk.client().visit(20.0) as visit:
                    assert (await visit.ask("model")).model
                    _say(visit.writer, wrong)
                    assert await visit.reader.read() == b""


def _say(writer: asyncio.StreamWriter, want: WantPart) -> None:
    data = want.model_dump_json().encode()
    writer.write(len(data).to_bytes(4, "big") + data)


class Line:
    """A connection that gives what is asked for, until it breaks."""

    def __init__(self, lasts: int = 1 << 40, files: dict[str, bytes] | None = None) -> None:
        self.lasts, self.files, self.gave = lasts, files or FILES, 0
        self.writer, self._due = self, deque[bytes]()

    def write(self, data: bytes) -> None:
        want = WantPart.model_validate_json(data[4:])
        self._due.append(self.files[want.name][want.offset : want.offset + want.size])

    async def read(self, size: int) -> bytes:
        data = self._due.popleft()
        assert len(data) == size
        if self.gave + size > self.lasts:
            raise ConnectionResetError("it broke")
        self.gave += size
        return data


def offer(**more: bytes) -> OfferedModel:
    files = FILES | more
    listed = (ModelFile(name=name, bytes=len(data), sha256=_hash(data)) for name, data in files.items())
    return OfferedModel(job="tiny", step=20, files=tuple(listed))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def download(out: Path, model: OfferedModel, line: Line) -> None:
    await ModelDownload(out, model).run(line, lambda _: None)  # type: ignore[arg-type]


async def test_a_download_that_broke_off_goes_on_where_it_was(tmp_path: Path) -> None:
    out, total = tmp_path / "out", sum(map(len, FILES.values()))
    first, second = Line(2_000_000), Line()
    with pytest.raises(ConnectionError):
        await download(out, offer(), first)
    assert not out.exists()
    assert ModelDownload(out, offer()).done == first.gave > 1_000_000
    await download(out, offer(), second)
    assert second.gave == total - first.gave
    assert files_of(out) == FILES
    assert list(tmp_path.iterdir()) == [out]


async def test_of_another_model_nothing_is_taken_over(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        await download(tmp_path / "out", offer(), Line(2_000_000))
    newer = offer().model_copy(update={"step": 30})
    assert ModelDownload(tmp_path / "out", newer).done == 0


async def test_other_bytes_than_were_said_are_thrown_away(tmp_path: Path) -> None:
    """Those that come, and those that somebody has changed meanwhile; the next attempt mends it."""
    out = tmp_path / "out"
    false = FILES | {"model.safetensors": bytes(2_560_000)}
    with pytest.raises(Refused, match="another hash"):
        await download(out, offer(), Line(files=false))
    with pytest.raises(ConnectionError):
        await download(out, offer(), Line(2_000_000))
    with (partial_folder(out) / "model.safetensors").open("r+b") as file:
        file.write(b"!")
    with pytest.raises(Refused, match="another hash"):
        await download(out, offer(), Line())
    await download(out, offer(), Line())
    assert files_of(out) == FILES


def test_a_model_that_is_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    huge = ModelFile(name="model.safetensors", bytes=1 << 60, sha256="0" * 64)
    with pytest.raises(UserError, match="make room, or choose another --out"):
        ModelDownload(tmp_path / "out", OfferedModel(job="tiny", step=1, files=(huge,)))


@pytest.mark.parametrize(
    "name", ["../config.json", "/etc/x.json", ".bashrc", "a/b.json", "run.py", "model.bin", "x.json\n", ""]
)
def test_a_file_that_leads_elsewhere_or_holds_a_program_is_no_part_of_a_model(name: str) -> None:
    with pytest.raises(ValidationError):
        ModelFile(name=name, bytes=1, sha256="0" * 64)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    files = tuple(ModelFile(name=name, bytes=1, sha256="0" * 64) for name in ("a.json", "A.json"))
    with pytest.raises(Refused, match="one name"):
        ModelDownload(tmp_path / "out", OfferedModel(job="tiny", step=1, files=files))


async def test_the_folder_is_called_as_job_and_step_are_whatever_the_job_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep_checkpoint(tmp_path / "state", 20)
    async with (
        ModelShelf(tmp_path / "state", "../../tiny", Writer()).open() as shelf,
        open_desk(shelf=shelf) as desk,
    ):
        await FetchModel(desk.client(), None, lambda _: None, lambda _: asyncio.sleep(0)).run()
    assert json.loads((tmp_path / "tiny-step-20" / "config.json").read_text()) == {}
