"""The folder of checkpoints: whole or not there, and never a damaged one."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dtfm_protocol.checkpoint.draft import Draft
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.shard import decode_tensor, encode_shard
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.process.logs import log

FILES = ("stage-0.safetensors", "stage-1.safetensors")


def state(step: int, stage: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * step + stage)
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    return {f"{kind}/layer.{stage}": torch.randn(4, 6, generator=generator) for kind in kinds}


def fill(draft: Draft, step: int) -> Manifest:
    """Add both stages and describe them."""
    files, tensors = [], {}
    for stage, name in enumerate(FILES):
        draft.add(name, encode_shard(state(step, stage)))
        file, entries = draft.describe(name, (stage, stage + 1))
        files.append(file)
        tensors.update(entries)
    replicas = ({"peer": "a" * 64}, {"other": "b" * 64})
    return Manifest(
        job="job",
        config={"model_type": "llama", "rms_norm_eps": 1e-6},
        step=step,
        plan_version=3,
        files=tuple(files),
        tensors=tensors,
        replicas=replicas,
        eval_loss=1.25,
    )


def keep(store: CheckpointStore, step: int) -> Manifest:
    with store.draft(step) as draft:
        manifest = fill(draft, step)
        draft.commit(manifest)
    return manifest


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What is logged, whether or not another test has set up the program's log."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    handler = Lines()
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_checkpoint_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.newest() is None
    assert store.steps() == []
    keep(store, 100)
    manifest = keep(store, 50)
    assert store.steps() == [50, 100]
    assert names(tmp_path / "checkpoints") == ["step-00000050", "step-00000100"]
    assert names(tmp_path / "checkpoints" / "step-00000050") == ["manifest.json", *FILES]
    newest = CheckpointStore(tmp_path / "checkpoints").newest()
    assert newest is not None
    assert newest.step == 100
    assert store.whole(50) == manifest
    assert [file.layers for file in newest.files] == [(0, 1), (1, 2)]


def test_one_tensor_is_read_without_the_rest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    manifest = keep(store, 7)
    for stage in range(2):
        for key, value in state(7, stage).items():
            assert torch.equal(decode_tensor(manifest.tensors[key], store.read(manifest, key)), value)
    moments = dict(store.tensors(manifest, "exp_avg"))
    assert moments.keys() == {"layer.0", "layer.1"}
    assert torch.equal(moments["layer.1"], state(7, 1)["exp_avg/layer.1"])


def test_a_tensor_that_is_not_there_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    manifest = keep(store, 7)
    with pytest.raises(Refused, match="no tensor weight/x in the checkpoint of step 7"):
        store.read(manifest, "weight/x")
    (tmp_path / "step-00000007" / FILES[0]).write_bytes(b"short")
    with pytest.raises(Refused, match=r"ends before weight/layer\.0"):
        store.read(manifest, "weight/layer.0")
    (tmp_path / "step-00000007" / FILES[0]).unlink()
    with pytest.raises(Refused, match="cannot be read"):
        store.read(manifest, "weight/layer.0")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / FILES[1]).unlink(), f"{FILES[1]} cannot be read"),
        (lambda folder: (folder / FILES[1]).write_bytes(b"torn"), f"{FILES[1]} has 4 bytes, not"),
        (lambda folder: flip(folder / FILES[0], -1), f"{FILES[0]} has another hash"),
        (lambda folder: flip(folder / FILES[0], 20), f"{FILES[0]} has another hash"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_bytes(b'{"version": 1, "jo'), "manifest.json is not JSON"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"[]"), "manifest.json has another hash"),
        (
            lambda folder: flip(
                folder / "manifest.json", (folder / "manifest.json").read_bytes().index(b"exp_avg/layer.0") + 2
            ),
            "manifest.json has another hash",
        ),
        (lambda folder: folder.rename(folder.with_name("step-00000300")), "manifest.json is of step 200"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_one_line_and_the_one_before_is_used(
    tmp_path: Path, warnings: list[str], damage: object, reason: str
) -> None:
    store = CheckpointStore(tmp_path)
    kept = keep(store, 100)
    keep(store, 200)
    damage(tmp_path / "step-00000200")
    assert store.newest() == kept
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert "\n" not in warnings[0]


def test_where_no_checkpoint_is_whole_there_is_none(tmp_path: Path, warnings: list[str]) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        keep(store, step)
        flip(tmp_path / f"step-0000000{step}" / FILES[0], -1)
    assert store.newest() is None
    assert len(warnings) == 2


@pytest.mark.parametrize("fault", [None, RuntimeError("the peer is gone"), KeyboardInterrupt()])
def test_a_draft_that_is_not_committed_leaves_nothing(tmp_path: Path, fault: BaseException | None) -> None:
    store = CheckpointStore(tmp_path)

    def write() -> None:
        with store.draft(5) as draft:
            fill(draft, 5)
            assert len(names(tmp_path)) == 1
            assert store.steps() == []
            if fault:
                raise fault

    if fault:
        with pytest.raises(type(fault)):
            write()
    else:
        write()
    assert names(tmp_path) == []


def test_what_a_crash_left_is_swept_by_the_writer_and_left_alone_by_a_reader(tmp_path: Path) -> None:
    fill(CheckpointStore(tmp_path).draft(5), 5)
    CheckpointStore(tmp_path, sweep=False)
    assert len(names(tmp_path)) == 1
    CheckpointStore(tmp_path)
    assert names(tmp_path) == []


def test_a_file_may_come_in_pieces_and_counts_when_its_end_is_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    data = encode_shard(state(5, 0))

    def break_off(draft: Draft) -> None:
        with draft.open(FILES[0]) as file:
            file.write(data[:100])
            raise ConnectionError

    with store.draft(5) as draft:
        with pytest.raises(ConnectionError):
            break_off(draft)
        with pytest.raises(Refused, match="is not in the draft"):
            draft.describe(FILES[0])
        with draft.open(FILES[0]) as file:
            for at in range(0, len(data), 100):
                file.write(data[at : at + 100])
            assert file.bytes == len(data)
        described, _ = draft.describe(FILES[0])
        assert described.sha256 == file.sha256


def test_a_file_that_is_no_safetensors_is_refused_when_described(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path).draft(5) as draft:
        for data in (b"", b"nonsense"):
            draft.add(FILES[0], data)
            with pytest.raises(Refused, match="is not a safetensors file"):
                draft.describe(FILES[0])


@pytest.mark.parametrize("name", ["../a.safetensors", "a/b.safetensors", "/a.safetensors", "manifest.json", ".."])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with CheckpointStore(tmp_path).draft(5) as draft, pytest.raises(Refused, match="is no name"):
        draft.add(name, b"x")
    assert names(tmp_path) == []


def test_a_manifest_of_other_files_than_were_added_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with store.draft(5) as draft:
        manifest = fill(draft, 5)
        with pytest.raises(Refused, match="of step 6"):
            draft.commit(manifest.model_copy(update={"step": 6}))
        draft.add(FILES[1], encode_shard(state(6, 1)))
        with pytest.raises(Refused, match="other files than were handed in"):
            draft.commit(manifest)
    assert store.steps() == []


def test_a_step_that_is_run_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    keep(store, 5)
    with store.draft(5) as draft:
        draft.commit(fill(draft, 5).model_copy(update={"plan_version": 4}))
    newest = store.newest()
    assert newest is not None
    assert newest.plan_version == 4
    assert names(tmp_path) == ["step-00000005"]


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3, 4):
        keep(store, step)
    store.prune(keep=2)
    assert store.steps() == [3, 4]
    assert names(tmp_path) == ["step-00000003", "step-00000004"]
    with pytest.raises(ValueError, match="at least one"):
        store.prune(keep=0)


def test_pruning_does_not_count_a_damaged_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        keep(CheckpointStore(tmp_path), step)
    flip(tmp_path / "step-00000004" / FILES[0], -1)
    CheckpointStore(tmp_path).prune(keep=2)
    assert CheckpointStore(tmp_path).steps() == [2, 3, 4]


def test_a_full_disk_is_one_line_and_the_draft_is_taken_away(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with store.draft(5) as draft:
        folder = next(tmp_path.iterdir())
        (folder / FILES[0]).symlink_to("/dev/full")
        with pytest.raises(UserError, match=r"cannot write the checkpoint .*No space left on device") as caught:
            draft.add(FILES[0], b"x" * 100_000)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write the checkpoint .*Not a directory"):
        CheckpointStore(tmp_path / "file").draft(5)
    with pytest.raises(UserError, match=r"cannot read the checkpoints .*Not a directory"):
        CheckpointStore(tmp_path / "file").newest()
