"""A state directory: one live process holds it, and its files are never half-written."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import holder as holder_of
from dtfm_protocol.process.state_dir import is_live, locked, write_atomically
from tests.harness.disks import full_disk

HOLDER = """
import sys
from pathlib import Path
from dtfm_protocol.process.state_dir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds `folder` until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_folder_is_made_held_and_freed(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    assert not is_live(folder)
    with locked(folder) as inside:
        assert inside == folder
        assert is_live(folder)
        assert (folder / "lock").read_text() == str(os.getpid())
    assert not is_live(folder)
    with locked(folder):
        pass


@pytest.mark.process
def test_a_folder_that_another_process_holds_is_refused_with_its_number(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert is_live(tmp_path)
        with pytest.raises(UserError, match=f"is in use by process {process.pid}: stop it") as caught, locked(tmp_path):
            pass
        assert "\n" not in str(caught.value)
        assert (tmp_path / "lock").read_text() == str(process.pid)
        process.kill()
        process.wait()
        # killed without a chance to clean up: the lock file is still there, the lock is not
        assert (tmp_path / "lock").exists()
        assert not is_live(tmp_path)
        with locked(tmp_path):
            assert (tmp_path / "lock").read_text() == str(os.getpid())


@pytest.mark.process
def test_the_process_that_last_took_the_lock_is_known(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with holder(tmp_path) as process:
        assert holder_of(tmp_path) == process.pid
        process.kill()
        process.wait()
    assert holder_of(tmp_path) == process.pid
    (tmp_path / "lock").write_text("no number")
    assert holder_of(tmp_path) is None


def test_the_lock_is_freed_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path):
        raise RuntimeError
    assert not is_live(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "state"
    with pytest.raises(UserError, match=r"cannot write to the state dir .*choose another --state-dir"), locked(folder):
        pass


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def _generous() -> Iterator[None]:
    """A user whose new files and folders anybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_generous")
def test_a_new_state_dir_is_closed_to_other_users(tmp_path: Path) -> None:
    with locked(tmp_path / "deep" / "state") as folder:
        assert mode(folder) == 0o700
        assert mode(folder / "lock") == 0o600
        ShardFolder(folder / "tokens").add(sha256(b"text").hexdigest(), b"text")
        Snapshots(folder / "snapshots")
        with CheckpointStore(folder / "checkpoints").draft(1):
            drafts = list((folder / "checkpoints").iterdir())
            assert [mode(path) for path in (folder / "tokens", folder / "snapshots", *drafts)] == [0o700] * 3


@pytest.mark.parametrize("holds", [[], ["lock"], ["key", "status.json"]])
def test_a_state_dir_of_before_is_closed_to_other_users(tmp_path: Path, holds: list[str]) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o775)
    for name in holds:
        (folder / name).touch()
    with locked(folder):
        assert mode(folder) == 0o700


def test_a_folder_that_is_no_state_dir_stays_as_it_is_and_is_refused(tmp_path: Path) -> None:
    """Others may have to read it: somebody has mistyped a name."""
    folder = tmp_path / "documents"
    folder.mkdir(mode=0o755)
    (folder / "letter").touch()
    refusal = r"^others may read the state dir .* run chmod 700 '.*documents'"
    with pytest.raises(UserError, match=refusal) as caught, locked(folder):
        pass
    assert "\n" not in str(caught.value)
    assert mode(folder) == 0o755
    assert sorted(path.name for path in folder.iterdir()) == ["letter"]
    folder.chmod(0o700)
    with locked(folder):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o777)
    os.chown(folder, 65534, 65534)
    with pytest.raises(UserError, match=r"^others may read the state dir"), locked(folder):
        pass


@pytest.mark.parametrize("data", ["text\n", b"\x00bytes", ""])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, data: str | bytes) -> None:
    path = tmp_path / "status.json"
    path.write_text("old and longer than the new one")
    old = path.open("rb")
    write_atomically(path, data)
    wanted = data.encode() if isinstance(data, str) else data
    with old:
        assert old.read() == b"old and longer than the new one"  # a reader that was there first is not torn
    assert path.read_bytes() == wanted
    assert os.listdir(tmp_path) == ["status.json"]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, lasting: bool) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, "old")
    with full_disk(5), pytest.raises(UserError, match=r"cannot write .*status\.json: File too large"):
        write_atomically(path, "too long", lasting=lasting)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["status.json"]


def test_what_is_to_last_is_on_the_disk_before_it_takes_the_old_files_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then its name is: a power cut leaves the old file or the new one, and after the call the new one."""
    done: list[str] = []
    path, sync, replace = tmp_path / "promise.json", os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_atomically(path, "new", lasting=True)
    assert done == [".promise.json.tmp", "replace", tmp_path.name]
    assert path.read_text() == "new"


@pytest.mark.parametrize("where", ["none/status.json", "file/status.json"])
def test_a_folder_that_is_not_there_is_a_user_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_atomically(tmp_path / where, "new")


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        write_atomically(pipe, "hello")
        assert os.read(descriptor, 10) == b"hello"
    finally:
        os.close(descriptor)
    assert pipe.is_fifo()
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"
    with pytest.raises(UserError, match="cannot write"):
        write_atomically(tmp_path, "over a folder")
