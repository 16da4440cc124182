"""Snapshots: whole on the disk or not there."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dtfm_node.state.snapshots import VOTES_KEPT, Snapshot, Snapshots, read_piece, write_snapshot
from dtfm_node.state.state_reading import Abandoned, Reading
from dtfm_protocol.checkpoint.shard import decode_tensor, encode_shard, tensor_entry
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from tests.harness.disks import full_disk
from tests.harness.named_peers import vote_on
from tests.node.finals import final
from tests.node.test_state_reading import State, same, settles, state

FRONT: LayerRange = (0, 2)
FINAL = final(Mark(step=7, plan=1))


def at(step: int, plan: int = 1) -> Mark:
    return Mark(step=step, plan=plan)


def row(step: int) -> StepMetrics:
    return StepMetrics(
        step=step, loss=1.0, tokens=8, seconds=0.1, plan_version=1, learning_rate=1e-3, grad_norm=1.0,
        predicted_seconds=None,
    )  # fmt: skip


def write(
    folder: Path, mark: Mark, layers: LayerRange = FRONT, rows: tuple[StepMetrics, ...] = ()
) -> tuple[Snapshot, State]:
    tensors = state(mark.step)
    snapshot, _ = write_snapshot(folder, mark, layers, tensors, Reading(tensors), FINAL, rows)
    return snapshot, tensors


def loaded(folder: Path) -> Snapshots:
    """What the next life of a daemon finds."""
    found = Snapshots(folder)
    found.load()
    return found


def vote_for(tensors: State, step: int = 7) -> StateVote:
    """The vote of a peer of the back stage on these tensors."""
    hashes = {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in tensors.items()}
    return vote_on("b", at(step), (2, 4), digest_of_state(hashes))


def read(snapshots: Snapshots, mark: Mark) -> State:
    found = {}
    for key, (entry, path) in snapshots.of(mark).items():
        data = read_piece(path, entry.offset, entry.bytes)
        assert data is not None
        found[key] = decode_tensor(entry, data)
    return found


def test_what_is_written_is_there_and_in_the_next_life_too(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshot, tensors = write(tmp_path, at(7), rows=(row(6), row(7)))
    assert snapshots.holdings() == []
    snapshots.add(snapshot)
    for found in (snapshots, loaded(tmp_path)):
        assert found.holdings() == [Holding(mark=at(7), layers=FRONT, commit=FINAL)]
        assert found.has(at(7), FRONT)
        assert not found.has(at(7, plan=2), FRONT)
        assert not found.has(at(7), (2, 4))
        assert same(read(found, at(7)), tensors)
        assert found.of(at(8)) == {}
        assert list(found.rows()) == [row(6), row(7)]


def test_a_snapshot_is_a_safetensors_file_and_tells_the_hash_of_each_tensor(tmp_path: Path) -> None:
    tensors = state()
    snapshot, hashes = write_snapshot(tmp_path, at(7), FRONT, tensors, Reading(tensors))
    assert same(load_file(tmp_path / f"{snapshot.stem}.safetensors"), tensors)
    assert hashes == {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in tensors.items()}


def test_what_is_only_read_is_hashed_and_not_written(tmp_path: Path) -> None:
    """A matrix that both ends hold is one of them to keep, and both to vouch for."""
    tensors = state()
    kept = {key: tensor for key, tensor in tensors.items() if key.endswith("/a")}
    snapshot, hashes = write_snapshot(tmp_path, at(7), FRONT, kept, Reading(tensors))
    assert hashes.keys() == tensors.keys()
    assert snapshot.tensors.keys() == kept.keys()
    assert same(load_file(tmp_path / f"{snapshot.stem}.safetensors"), kept)


def damage(path: Path, how: str) -> None:
    data, beside = path.read_bytes(), path.with_suffix(".json")
    if how == "torn":
        path.write_bytes(data[:-1])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "longer":
        path.write_bytes(data + b"\0")
    elif how == "a bit":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "nothing beside":
        beside.unlink()
    elif how == "half beside":
        beside.write_bytes(beside.read_bytes()[:-10])
    elif how == "renamed":
        for file in (path, beside):
            file.rename(file.with_name(file.name.replace("step-00000007", "step-00000008")))
    else:
        beside.write_text(json.dumps(json.loads(beside.read_text()) | {"sha256": "0" * 64}))


@pytest.mark.parametrize(
    "how", ["torn", "empty", "longer", "a bit", "nothing beside", "half beside", "renamed", "another hash beside"]
)
def test_a_damaged_snapshot_is_found_and_taken_away_and_the_others_stay(tmp_path: Path, how: str) -> None:
    snapshot, _ = write(tmp_path, at(7))
    _, tensors = write(tmp_path, at(5))
    damage(tmp_path / f"{snapshot.stem}.safetensors", how)
    found = loaded(tmp_path)
    assert found.holdings() == [Holding(mark=at(5), layers=FRONT, commit=FINAL)]
    assert same(read(found, at(5)), tensors)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000005-plan-1-layers-0-2.json",
        "step-00000005-plan-1-layers-0-2.safetensors",
    ]


def test_what_an_earlier_life_left_half_done_is_swept_away(tmp_path: Path) -> None:
    write(tmp_path, at(5))
    (tmp_path / ".coming-6-0").write_bytes(b"half")
    (tmp_path / ".step-00000006-plan-1-layers-0-2.json.tmp").write_bytes(b"half")
    (tmp_path / "step-00000006-plan-1-layers-0-2.draft").write_bytes(b"half")
    assert len(loaded(tmp_path).holdings()) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_until_its_last_byte_is_there_a_snapshot_has_another_name(tmp_path: Path) -> None:
    """A file of that name may be there already: one that is torn must not take its place."""
    tensors, names = state(), list[list[str]]()

    class Watched(Reading):
        def visit(self, look: Callable[[str, torch.Tensor], None]) -> None:
            super().visit(look)
            names.append([path.name for path in tmp_path.iterdir()])

    snapshot, _ = write_snapshot(tmp_path, at(7), FRONT, tensors, Watched(tensors))
    assert names == [[f"{snapshot.stem}.draft"]]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_a_disk_that_fills_up_leaves_the_same_snapshot_that_was_there(tmp_path: Path) -> None:
    snapshot, tensors = write(tmp_path, at(7))
    with full_disk(100), pytest.raises(UserError):
        write(tmp_path, at(7))
    found = loaded(tmp_path)
    assert found.has(snapshot.mark, snapshot.layers)
    assert same(read(found, at(7)), tensors)


def test_a_snapshot_that_is_discarded_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    for mark in (at(5), at(7)):
        snapshots.add(write(tmp_path, mark)[0])
    ((_, path), *_) = snapshots.of(at(7)).values()
    snapshots.discard(path)
    snapshots.discard(path)
    assert [holding.mark for holding in snapshots.holdings()] == [at(5)]
    assert [holding.mark for holding in loaded(tmp_path).holdings()] == [at(5)]
    assert not list(tmp_path.glob("*00000007*"))


@pytest.mark.parametrize("room", [0, 100, 500])
def test_a_full_disk_is_a_user_error_and_leaves_no_file(tmp_path: Path, room: int) -> None:
    tensors = {f"weight/{index}": torch.zeros(1000) for index in range(20)}
    reading = Reading(tensors)
    with full_disk(room), pytest.raises(UserError, match=r"cannot write a snapshot to .*: make room there") as caught:
        write_snapshot(tmp_path, at(7), FRONT, tensors, reading)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    reading.settle()  # nothing is left for an update to wait for, or to copy
    assert loaded(tmp_path).holdings() == []


def test_a_disk_that_is_full_at_the_very_end_leaves_no_file(tmp_path: Path) -> None:
    """There was room for the tensors, and none for what says that they are whole."""
    tensors = {f"weight/{index}": torch.zeros(1) for index in range(20)}
    with (
        full_disk(3000),
        pytest.raises(UserError, match=r"cannot write a snapshot: .*json: File too large; make room on that disk"),
    ):
        write_snapshot(tmp_path, at(7), FRONT, tensors, Reading(tensors))
    assert list(tmp_path.iterdir()) == []


def test_what_is_older_than_a_safe_state_is_taken_away(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    marks = [at(3), at(5), at(5, plan=2), at(7)]
    for mark in marks:
        snapshots.add(write(tmp_path, mark)[0])
    assert snapshots.unsafe(at(3)) == 3
    assert snapshots.unsafe(at(5)) == 2
    snapshots.prune(at(5, plan=2))
    assert [holding.mark for holding in snapshots.holdings()] == marks[2:]
    assert len(list(tmp_path.iterdir())) == 4
    assert [holding.mark.step for holding in loaded(tmp_path).holdings()] in ([5, 7], [7, 5])
    snapshots.prune(Mark())
    assert len(snapshots.holdings()) == 2


def test_a_file_of_another_peer_is_taken_over_whole(tmp_path: Path) -> None:
    tensors = state()
    data = encode_shard(tensors)
    coming = tmp_path / ".coming-7-2"
    coming.write_bytes(data)
    snapshots = Snapshots(tmp_path)
    snapshots.add(snapshots.adopt(coming, vote_for(tensors), hashlib.sha256(data).hexdigest()))
    for found in (snapshots, loaded(tmp_path)):
        assert found.holdings() == [Holding(mark=at(7), layers=(2, 4), votes=(vote_for(tensors),))]
        assert same(read(found, at(7)), tensors)
    assert not coming.exists()


def test_a_file_that_is_not_what_its_giver_has_signed_is_refused(tmp_path: Path) -> None:
    """Though it is whole, and has the hash that was announced."""
    data = encode_shard({key: tensor + 1e-3 for key, tensor in state().items()})
    coming = tmp_path / ".coming-7-2"
    coming.write_bytes(data)
    snapshots = Snapshots(tmp_path)
    with pytest.raises(Refused, match=r"is not what \w+ has signed"):
        snapshots.adopt(coming, vote_for(state()), hashlib.sha256(data).hexdigest())
    assert list(tmp_path.glob("*.safetensors")) == []


def test_the_newest_few_votes_of_this_node_are_remembered(tmp_path: Path) -> None:
    """Whether or not it has written what they are on."""
    snapshots = Snapshots(tmp_path)
    assert snapshots.newest_vote is None
    votes = [vote_for(state(step), step) for step in range(1, 2 * VOTES_KEPT + 1)]
    for vote in votes:
        snapshots.cast(vote)
        assert snapshots.newest_vote == vote
    found = [snapshots.votes_on(*vote.subject) for vote in votes]
    assert found == [()] * VOTES_KEPT + [(vote,) for vote in votes[VOTES_KEPT:]]


@pytest.mark.parametrize("data", [encode_shard(state()), b"no safetensors file"])
def test_a_file_that_is_not_what_was_announced_is_refused(tmp_path: Path, data: bytes) -> None:
    coming = tmp_path / ".coming-7-2"
    coming.write_bytes(data)
    snapshots = Snapshots(tmp_path)
    with pytest.raises(Refused):
        snapshots.adopt(coming, vote_for(state()), "0" * 64)
    assert list(tmp_path.iterdir()) == [coming]


def test_a_piece_of_a_file_that_is_gone_or_shorter_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_piece(path, 0, 1) is None
    path.write_bytes(b"0123456789")
    assert read_piece(path, 2, 3) == b"234"
    assert read_piece(path, 8, 3) is None


def test_what_is_no_tensor_of_a_snapshot_leaves_no_file_and_holds_up_no_update(tmp_path: Path) -> None:
    tensors = state() | {"weight/c": torch.zeros(3, dtype=torch.int16)}
    reading = Reading(tensors, copy_bytes=0)
    with pytest.raises(KeyError):
        write_snapshot(tmp_path, at(7), FRONT, tensors, reading)
    assert list(tmp_path.iterdir()) == []
    assert settles(reading)


def test_a_snapshot_whose_reading_is_given_up_midway_is_not_there(tmp_path: Path) -> None:
    """And one of the same name that was there before stays whole."""
    snapshot, before = write(tmp_path, at(7))
    tensors = state(8)

    class Stopped(Reading):
        def _visit_next(self, look: Callable[[str, torch.Tensor], None]) -> bool:
            if len(self._left) == 2:
                self.abandon()
            return super()._visit_next(look)

    with pytest.raises(Abandoned):
        write_snapshot(tmp_path, at(7), FRONT, tensors, Stopped(tensors))
    assert len(list(tmp_path.iterdir())) == 2
    found = loaded(tmp_path)
    assert found.has(snapshot.mark, snapshot.layers)
    assert same(read(found, at(7)), before)


def test_whoever_subscribes_hears_of_each_further_snapshot(tmp_path: Path) -> None:
    snapshots, told = Snapshots(tmp_path), list[int]()
    snapshots.add(write(tmp_path, at(5))[0])
    snapshots.when_added(lambda: told.append(len(snapshots.holdings())))
    for step in (6, 7):
        snapshots.add(write(tmp_path, at(step))[0])
    assert told == [2, 3]
