"""One `join` on several devices: what is divided, which nodes run, and what acts on all of them."""

import asyncio
import contextlib
import io
import json
import logging
import math
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtfm_node.commands.consent import Consent
from dtfm_node.commands.join_command import JoinCommand
from dtfm_node.commands.join_devices import DIVIDED
from dtfm_node.commands.pause import pause_all, resume_all
from dtfm_node.commands.remove import Removal
from dtfm_node.devices.device_folders import DEVICES, folder_names, keep_list, nodes_of
from dtfm_node.devices.device_list import devices_of
from dtfm_node.devices.device_nodes import DeviceNode, DeviceNodes
from dtfm_node.devices.device_shares import Allowed, arguments_of
from dtfm_node.devices.devices_screen import screen, words_of
from dtfm_node.devices.restarts import FIRST_PAUSE, LONGEST_PAUSE, REFUSED_SECONDS, STEADY_SECONDS, Restarts
from dtfm_node.limits.pause_order import read_order
from dtfm_node.main import app
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import is_live, locked

NODE = """
import json, os, signal, sys, time
folder, behaviour = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
lives = len(os.listdir(folder))
open(os.path.join(folder, f"life-{lives}"), "w").close()
def say(words, **more):
    text = json.dumps({"at": time.time(), "words": [words], "state": "idle"} | more)
    open(os.path.join(folder, "status.json"), "w").write(text)
    print(json.dumps({"at": 0, "level": "info", "message": words}), flush=True)
def left(*_):
    say("left")
    sys.exit(130)
signal.signal(signal.SIGINT, left)
say("computes")
if behaviour == "dies once" and lives == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if behaviour == "refuses":
    print("error: no room", flush=True)
    sys.exit(2)
if behaviour == "finishes" or behaviour == "dies once":
    sys.exit(0)
time.sleep(600)
"""
"""Stands in for `dtfm-node join`: does as it is told, and leaves a file for each of its lives."""


class NoPauses(MonotonicClock):
    """Pauses are over at once; lives last as long as they do."""

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return super().timeout(0.001)


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """What is logged in the block, line by line."""
    lines: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # Libraries give levels other names.
            lines.append(f"{'WARNING' if record.levelno == logging.WARNING else 'INFO'} {record.getMessage()}")

    handler, level = Keeping(), log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def nodes_in(folder: Path, **behaviours: str) -> list[DeviceNode]:
    command = (sys.executable, "-c", NODE)
    return [
        DeviceNode(name, folder / name, (*command, str(folder / name), behaviour.replace("_", " ")))
        for name, behaviour in behaviours.items()
    ]


async def until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - files tell it
            await asyncio.sleep(0.02)


# -- which devices ----------------------------------------------------------------------------------------------------


def test_all_devices_are_those_that_torch_sees_and_some_are_those_that_are_named() -> None:
    assert devices_of("all", lambda: 3) == ("cuda:0", "cuda:1", "cuda:2")
    assert devices_of("cuda:0, cuda:2", lambda: 0) == ("cuda:0", "cuda:2")
    assert devices_of("cpu,cpu", lambda: 0) == ("cpu", "cpu")
    assert folder_names(("cuda:0", "cuda:10", "cpu", "cpu")) == ["cuda-0", "cuda-10", "cpu", "cpu-2"]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("all", "torch sees no CUDA device here"),
        ("cuda:1,cuda:1", "cuda:1 stands there twice"),
        ("cuda:0,gpu", "gpu is no device"),
        ("cuda:0,", "nothing is no device"),
        (",".join(["cpu"] * 65), "more than 64"),
    ],
)
def test_devices_that_are_none_are_refused(device: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        devices_of(device, lambda: 0)


# -- what each gets ---------------------------------------------------------------------------------------------------


def options_of(*devices: str, **allowed: object) -> list[dict[str, str]]:
    values = {"threads": 8, "memory_free": 8 * 10**9, "disk_bytes": 30 * 10**9} | allowed
    found = arguments_of(Allowed(**values), devices)  # type: ignore[arg-type]
    return [
        dict(one.removeprefix("--").split("=", 1) if "=" in one else (one[2:], "") for one in each) for each in found
    ]


def test_what_belongs_to_the_machine_is_divided_and_what_belongs_to_a_device_is_not() -> None:
    first, second = options_of(
        "cuda:0", "cuda:1", upload=2.5e6, download=5e6, memory_gb=6.0, name="attic",
        others={"gpu-memory": "10.0", "hours": "22-7", "when-idle": True, "lan": False},
    )  # fmt: skip
    assert (first["device"], second["device"]) == ("cuda:0", "cuda:1")
    assert (first["name"], second["name"]) == ("attic 1", "attic 2")
    for one in (first, second):
        assert (one["upload"], one["download"]) == ("10000kbit", "20000kbit")
        assert (one["threads"], one["memory"], float(one["disk"])) == ("4", "3", pytest.approx(15.0))
        assert (one["gpu-memory"], one["hours"], one["when-idle"]) == ("10.0", "22-7", "")
        assert "lan" not in one


def test_memory_that_is_not_limited_is_divided_among_those_that_share_it() -> None:
    both = options_of("cpu", "cpu")
    assert [one["memory"] for one in both] == ["4", "4"]
    gpu, processor = options_of("cuda:0", "cpu")
    assert "memory" not in gpu
    assert "memory" not in processor
    assert sum(float(one["memory"]) for one in options_of("cpu", "cpu", "cpu")) == pytest.approx(8.0, rel=1e-4)


def test_each_has_ports_of_its_own_after_those_of_the_others() -> None:
    assert [one.get("port") for one in options_of("cpu", "cpu", port=7000)] == ["7000", "7002"]
    assert [one.get("announce") for one in options_of("cpu", "cpu", announce="me:7000")] == ["me:7000", "me:7002"]
    assert [one.get("announce") for one in options_of("cpu", "cpu", announce="me")] == ["me", "me"]
    with pytest.raises(UserError, match="do not suffice"):
        options_of("cpu", "cpu", port=65533)


def test_a_rate_that_is_too_low_to_be_divided_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="--upload: 2 devices share it"):
        options_of("cpu", "cpu", upload=1.5e5 / 8)
    assert "upload" not in options_of("cpu", "cpu", upload=math.inf)[0]


def test_a_long_name_still_ends_in_the_devices_number() -> None:
    assert [one["name"] for one in options_of("cpu", "cpu", name="x" * 32)] == [f"{'x' * 30} 1", f"{'x' * 30} 2"]


def test_every_option_of_join_is_either_divided_or_handed_on(tmp_path: Path) -> None:
    import typer

    command = typer.main.get_command(app).commands["join"]  # type: ignore[attr-defined]
    assert isinstance(command, JoinCommand)
    given = "@x --yes --pace 5 --when-idle --device cpu,cpu --memory 3 --log-format json"
    context = command.make_context("join", given.split(), resilient_parsing=True)
    assert command.given(context, DIVIDED) == {"pace": "5.0", "when-idle": True}
    assert set(DIVIDED) <= set(command._options(context))


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_a_node_that_fails_is_started_again_after_pauses_that_double_until_it_has_lived_long() -> None:
    restarts, pauses = Restarts(), []
    for _ in range(9):
        restarts, ended = restarts.ended(-signal.SIGKILL, 1.0)
        pauses.append(ended.again_after)
        assert ended.is_fault
    assert pauses == [min(LONGEST_PAUSE, FIRST_PAUSE * 2**number) for number in range(9)]
    assert restarts.ended(1, STEADY_SECONDS)[1].again_after == FIRST_PAUSE


def test_a_node_that_has_finished_left_or_was_refused_is_not_started_again() -> None:
    for code, fault in ((0, False), (130, False), (143, False), (129, False), (2, True)):
        ended = Restarts().ended(code, 1.0)[1]
        assert (ended.again_after, ended.is_fault) == (None, fault)
    assert Restarts().ended(2, REFUSED_SECONDS)[1].again_after == FIRST_PAUSE


# -- the nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.process
async def test_one_that_dies_is_started_again_and_one_that_is_refused_is_said_while_others_finish(
    tmp_path: Path,
) -> None:
    nodes = nodes_in(tmp_path, one="finishes", two="dies_once", three="refuses")
    with logged() as lines:
        await DeviceNodes(nodes, NoPauses()).run()
    assert [len(list((tmp_path / name).glob("life-*"))) for name in ("one", "two", "three")] == [1, 2, 1]
    assert any(line.startswith("WARNING two was ended by signal 9; it is started again in 5 s") for line in lines), (
        lines
    )
    assert "WARNING three does not take part: error: no room" in lines
    assert {"INFO one has finished", "INFO two has finished", "INFO one: computes"} <= set(lines)


@pytest.mark.process
async def test_where_none_takes_part_that_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one does not take part: error: no room; two does not"):
        await DeviceNodes(nodes_in(tmp_path, one="refuses", two="refuses"), NoPauses()).run()


@pytest.mark.process
async def test_all_are_asked_to_leave_together(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path, one="stays", two="stays")
    running = DeviceNodes(nodes)
    task = asyncio.create_task(running.run())
    await until(lambda: all(node.words == "computes" for node in nodes))
    assert running.leave()
    await asyncio.wait_for(task, 60)
    assert [node.words for node in nodes] == ["has left", "has left"]
    assert [words_of(node.folder) for node in nodes] == ["left", "left"]


@pytest.mark.process
async def test_none_outlives_the_end(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path, one="stays", two="stays")
    task = asyncio.create_task(DeviceNodes(nodes).run())
    await until(lambda: all(node.words == "computes" for node in nodes))
    processes = [node._process for node in nodes]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert all(process is not None and process.returncode == 130 for process in processes)


def test_the_screen_has_a_line_for_each(tmp_path: Path) -> None:
    from rich.console import Console

    (tmp_path / "status.json").write_text(json.dumps({"at": time.time(), "words": ["You wait.", "\x1b[31mSent 1 GB."]}))
    words = words_of(tmp_path)
    assert words.startswith("You wait. ")
    assert "\x1b" not in words
    assert words_of(tmp_path, since=time.time() + 60) == words_of(tmp_path / "none") == ""
    console = Console(width=60, file=io.StringIO(), record=True)
    console.print(screen({"cuda-0": words, "cuda-1": "starts"}))
    shown = console.export_text().splitlines()
    assert shown[0].startswith("cuda-0  You wait.")
    assert shown[-1].startswith("cuda-1  starts")


# -- commands on all of them ------------------------------------------------------------------------------------------


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """The state folder of a machine with two devices, whose nodes have run."""
    folder = tmp_path / "state"
    for one in (folder, *(folder / DEVICES / name for name in ("cuda-0", "cuda-1"))):
        with locked(one):
            Consent(one, "1" * 16).keep()
        (one / "key").write_text("x")
    for name in ("cuda-0", "cuda-1"):
        status = {"at": time.time(), "words": [f"You compute on {name}."], "timeouts": {}, "state": "paused"}
        (folder / DEVICES / name / "status.json").write_text(json.dumps(status))
    keep_list(folder, ["cuda-0", "cuda-1"])
    return folder


def test_the_nodes_of_a_folder_are_those_of_the_last_join(joined: Path) -> None:
    assert [node.name for node in nodes_of(joined)] == ["cuda-0", "cuda-1"]
    keep_list(joined, ["cuda-1", "../../x"])
    assert [node.name for node in nodes_of(joined)] == ["cuda-1"]
    keep_list(joined, ())
    assert nodes_of(joined) == [joined]
    (joined / "devices.json").write_text('{"a"')
    assert nodes_of(joined) == [joined]


def test_status_says_what_each_does(joined: Path) -> None:
    said = CliRunner().invoke(app, ["status", "--state-dir", str(joined)]).output
    assert said.index("cuda-0:") < said.index("You compute on cuda-0.") < said.index("cuda-1:")
    values = json.loads(CliRunner().invoke(app, ["status", "--state-dir", str(joined), "--json"]).output)
    assert [one["running"] for one in values["devices"].values()] == [False, False]


def test_pause_and_resume_act_on_all_that_run(joined: Path) -> None:
    nodes = nodes_of(joined)
    with pytest.raises(UserError, match="no node runs"):
        list(pause_all(nodes, None, 0.0, at_once=False))
    with locked(nodes[0]), locked(nodes[1]):
        assert all(map(is_live, nodes))
        said = list(pause_all(nodes, None, 0.0, at_once=True))
    assert [line.split(":")[0] for line in said] == ["cuda-0", "cuda-1"]
    assert all((order := read_order(node)) is not None and order.at_once for node in nodes)
    assert [line.split(":")[0] for line in resume_all(nodes)] == ["cuda-0", "cuda-1"]
    assert not any(map(read_order, nodes))
    with pytest.raises(UserError, match="no node was paused"):
        list(resume_all(nodes))


def test_remove_deletes_what_all_have_kept(joined: Path) -> None:
    (joined / DEVICES / "cuda-1" / "tokens").mkdir()
    (joined / DEVICES / "cuda-1" / "tokens" / f"{'a' * 64}.tokens").write_bytes(b"x" * 2000)
    with locked(joined / DEVICES / "cuda-0"), pytest.raises(UserError, match="in use"), Removal.of(joined, ""):
        pass
    with Removal.of(joined, "") as removal:
        assert "training text: 2 kB" in removal.screen()
        assert removal.carry_out().endswith(f"{joined} is gone")
    assert not joined.exists()
