"""Pieces of weights that a job begins with, from peers that vanish, lie, or have none."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.state.base_weights import PieceFetch
from dtfm_node.state.disk_budget import DiskBudget
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.shadowed_base import fetch_shadowed
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.base_transfers import BASE, serve_base
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import BasePiece
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream
from tests.harness.begun_base import begun_with, other_weights
from tests.node.engine_swarm import at_once, home, job_of

__all__ = ["home"]  # a fixture

PLAN = Plan(version=1, stages=((0, 4),), routes=(("a",), ("b",), ("c",)), author="owner")
VALUES = {"weight/a": torch.arange(3 << 20, dtype=torch.float32)}


class Setting:
    """Node "a", which needs one piece, and others that have it."""

    def __init__(self, folder: Path, budget: DiskBudget | None = None) -> None:
        self.network, self.given = MemoryNetwork(), PieceFolder(folder / "given")
        sha256, size = self.given.write(VALUES)
        self.piece = BasePiece(sha256=sha256, bytes=size, layers=(0, 1))
        self.holdings = Inventory(Snapshots(folder / "a", budget), at_once)
        self.fetch = PieceFetch(MemoryDataPlane(self.network, "a"), PLAN, self.holdings, 0.01, 5.0)
        self.false = PieceFolder(folder / "false")
        data = bytearray(self.given.path(sha256).read_bytes())
        data[-1] ^= 1
        (folder / "false").mkdir()
        self.false.path(sha256).write_bytes(data)

    async def has(self, peer: str, pieces: PieceFolder) -> None:
        await MemoryDataPlane(self.network, peer).serve(BASE, lambda stream: serve_base(stream, pieces))

    @property
    def is_here(self) -> bool:
        return self.holdings.pieces.has(self.piece.sha256)


async def test_another_replica_gives_a_piece_and_the_coordinator_is_not_asked(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    await setting.has("c", setting.given)
    found = await setting.fetch.run([setting.piece])
    assert (found.sources, found.bytes, found.false) == ({"c"}, setting.piece.bytes, {})
    assert torch.equal(setting.holdings.pieces.tensor(setting.piece.sha256, "weight/a"), VALUES["weight/a"])
    assert (await setting.fetch.run([setting.piece])).bytes == 0


async def test_what_has_come_of_a_source_that_vanishes_is_not_fetched_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    asked = list[int]()

    class Vanishing(PieceFolder):
        def read(self, sha256: str, offset: int, size: int) -> bytes | None:
            return super().read(sha256, offset, size) if offset < 8 << 20 else None

    class Counting(PieceFolder):
        def read(self, sha256: str, offset: int, size: int) -> bytes | None:
            asked.append(offset)
            return super().read(sha256, offset, size)

    await setting.has("b", Vanishing(tmp_path / "given"))
    await setting.has("owner", Counting(tmp_path / "given"))
    found = await setting.fetch.run([setting.piece])
    assert found.sources == {"b", "owner"}
    assert asked == [8 << 20, 12 << 20]
    assert setting.is_here


async def test_a_liar_is_named_and_gains_nothing(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    await setting.has("b", setting.false)
    await setting.has("owner", setting.given)
    found = await setting.fetch.run([setting.piece])
    assert found.false.keys() == {"b"}
    assert found.sources == {"owner"}
    assert setting.is_here


async def test_of_several_givers_the_one_who_lies_is_found_by_asking_each_for_all(tmp_path: Path) -> None:
    setting = Setting(tmp_path)

    class Half(PieceFolder):
        def read(self, sha256: str, offset: int, size: int) -> bytes | None:
            return super().read(sha256, offset, size) if offset < 8 << 20 else None

    await setting.has("b", Half(tmp_path / "given"))
    await setting.has("c", setting.false)
    await setting.has("owner", setting.given)
    found = await setting.fetch.run([setting.piece])
    assert found.sources == {"owner"}
    assert found.false.keys() <= {"c"}
    assert setting.is_here


async def test_a_damaged_file_of_the_coordinator_ends_the_wait_with_a_reason(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    await setting.has("owner", setting.false)
    with pytest.raises(Refused, match="its file is damaged on the coordinator"):
        await setting.fetch.run([setting.piece])
    assert not setting.is_here
    assert not list((tmp_path / "a" / "base").iterdir())


async def test_another_size_than_was_asked_for_is_refused_before_it_is_read(tmp_path: Path) -> None:
    setting = Setting(tmp_path)

    async def flood(stream: Stream) -> None:
        await stream.read(4)
        text = b'{"size": 9000000000}'
        await stream.write(len(text).to_bytes(4, "big") + text)

    await MemoryDataPlane(setting.network, "b").serve(BASE, flood)
    await setting.has("owner", setting.given)
    found = await setting.fetch.run([setting.piece])
    assert found.false.keys() == {"b"}
    assert setting.is_here


async def test_a_piece_for_which_the_disk_has_no_room_is_refused_before_it_comes(tmp_path: Path) -> None:
    setting = Setting(tmp_path, DiskBudget(1 << 20))
    await setting.has("owner", setting.given)
    with pytest.raises(Refused, match="allow more with --disk"):
        await setting.fetch.run([setting.piece])
    assert not setting.is_here


async def test_pieces_ahead_come_from_the_coordinator_and_no_own_one_makes_room(tmp_path: Path) -> None:
    """Those of the stage have to train, and what this node needs itself goes first."""
    plan = PLAN.model_copy(update={"stages": ((0, 2), (2, 4)), "routes": (("a", "b"),)})
    setting = Setting(tmp_path, DiskBudget(1 << 20))
    own, _ = setting.holdings.pieces.write({"weight/b": torch.zeros(4)})
    fetch = PieceFetch(MemoryDataPlane(setting.network, "ahead"), plan, setting.holdings, 0.01, 5.0, ahead_of=1)
    await setting.has("owner", setting.given)
    await setting.has("b", setting.given)
    with pytest.raises(Refused, match="allow more with --disk"):
        await fetch.run([setting.piece])
    assert setting.holdings.pieces.has(own)
    setting.holdings = Inventory(Snapshots(tmp_path / "roomy"), at_once)
    fetch = PieceFetch(MemoryDataPlane(setting.network, "more"), plan, setting.holdings, 0.01, 5.0, ahead_of=1)
    assert (await fetch.run([setting.piece])).sources == {"owner"}


LORA: dict[str, Any] = {"lora": {"r": 2, "lora_alpha": 4.0, "target_modules": ("q_proj",)}}


@pytest.mark.parametrize("method", ["lora", "frozen-layers", "full"])
async def test_a_shadow_fetches_what_is_never_trained_of_its_stage(home: Path, tmp_path: Path, method: str) -> None:
    """Of four layers "a" has the first half, keeps copies of the other, and lacks the pieces of that alone."""
    keys = {"lora": LORA, "frozen-layers": {"layers": (1, 3)}, "full": {}}[method]
    job, given, network = job_of(home, method=method, **keys), PieceFolder(tmp_path / "given"), MemoryNetwork()
    job = begun_with(job, other_weights(job), given)
    await MemoryDataPlane(network, "owner").serve(BASE, lambda stream: serve_base(stream, given))
    plan = Plan(version=1, stages=((0, 2), (2, 4)), routes=(("a", "b"),), shadows=(None, "a"), author="owner")
    holdings = Inventory(Snapshots(tmp_path / "a"), at_once)
    await fetch_shadowed(MemoryDataPlane(network, "a"), job, plan, holdings)
    here = [piece for piece in job.base if holdings.pieces.has(piece.sha256)]
    bounds = {"lora": [(2, 3), (3, 4), (4, 4)], "frozen-layers": [(2, 3)], "full": []}[method]
    assert [piece.layers for piece in here] == bounds


async def test_a_shadow_without_room_leaves_it_at_that(home: Path, tmp_path: Path) -> None:
    job, given, network = job_of(home, method="lora", **LORA), PieceFolder(tmp_path / "given"), MemoryNetwork()
    job = begun_with(job, other_weights(job), given)
    await MemoryDataPlane(network, "owner").serve(BASE, lambda stream: serve_base(stream, given))
    plan = Plan(version=1, stages=((0, 2), (2, 4)), routes=(("a", "b"),), shadows=("b", "a"), author="owner")
    holdings = Inventory(Snapshots(tmp_path / "a", DiskBudget(100)), at_once)
    await fetch_shadowed(MemoryDataPlane(network, "a"), job, plan, holdings)
    assert not any(holdings.pieces.has(piece.sha256) for piece in job.base)
