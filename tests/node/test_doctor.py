"""What doctor finds, how it is told, and what ends all looks in time; and what it says of this machine itself."""

import asyncio
import io
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from dtfm_node.doctor import examine, report
from dtfm_node.doctor.checks import (
    broker,
    clock_offset,
    invite_text,
    leftovers,
    ports,
    reachability,
    resources,
    versions,
)
from dtfm_node.doctor.doctor_options import DoctorOptions
from dtfm_node.doctor.examine import Examination, LookLimits
from dtfm_node.doctor.findings import Finding, Verdict, as_json, bad, clean, good, things_to_do, warn, worst
from dtfm_node.doctor.job_needs import Need, work_out
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import PROTOCOL_VERSION
from dtfm_protocol.process.state_dir import locked
from tests.node.doctor_hosts import HOST, INVITE, host
from tests.node.engine_swarm import job_of

# findings


@pytest.mark.parametrize(("verdict", "todo"), [(Verdict.good, "do it"), (Verdict.warn, ""), (Verdict.bad, "")])
def test_what_is_well_needs_nothing_done_and_all_else_one_thing(verdict: Verdict, todo: str) -> None:
    with pytest.raises(ValueError, match="one thing"):
        Finding("group", "name", verdict, "seen", todo)


def test_text_from_the_network_cannot_steer_a_terminal() -> None:
    assert clean("a\x1b[31mb\nc\u202ed") == "a [31mb c d"
    assert len(clean("x" * 10_000)) == 400
    said = Console(file=io.StringIO(), width=200)
    report._show(said, [good("g", "phase", "[bold]all\x1b[2J well[/bold]")])
    assert isinstance(said.file, io.StringIO)
    assert "[bold]all [2J well[/bold]" in said.file.getvalue()


def test_each_thing_to_do_is_told_once_and_what_is_bad_first() -> None:
    findings = [warn("g", "a", "", "later"), bad("g", "b", "", "now"), bad("g", "c", "", "now"), good("g", "d", "")]
    assert {what: [one.name for one in asking] for what, asking in things_to_do(findings).items()} == {
        "now": ["b", "c"],
        "later": ["a"],
    }
    assert worst(findings) is Verdict.bad
    assert worst([]) is Verdict.good
    said = json.loads(json.dumps(as_json(findings)))
    assert (said["verdict"], said["todo"]) == ("bad", ["now", "later"])
    assert said["findings"][0] == {"group": "g", "name": "a", "verdict": "warn", "seen": "", "todo": "later"}


def test_the_report_ends_in_what_there_is_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    report.show([good("g", "a", "fine")])
    assert capsys.readouterr().out.endswith("nothing to do: this machine can take part\n")
    report.show([good("g", "a", "fine"), bad("h", "b", "broken", "mend it")])
    assert capsys.readouterr().out.splitlines() == [
        "g", "  ok    a  fine", "h", "  BAD   b  broken", "",
        "this machine cannot take part yet; 1 thing to do:", "  1. b: mend it",
    ]  # fmt: skip


# the invite


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("hello", "copy the whole line"),
        (INVITE.encode()[:-4], "copy the whole line"),
        (INVITE.encode().replace(f"dtfm{PROTOCOL_VERSION}.", "dtfm7."), "install"),
        ("@/nowhere/invite", "after @"),
    ],
)
def test_an_invite_that_is_none_says_what_to_do(text: str, word: str) -> None:
    found, said = invite_text.look(text)
    assert found is None
    assert said.verdict is Verdict.bad
    assert word in said.todo


def test_an_invite_is_read() -> None:
    assert invite_text.look(INVITE.encode())[0] == INVITE


@pytest.mark.process
async def test_a_judgement_that_fails_is_told_and_the_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: object, **__: object) -> list[Finding]:
        raise ValueError("'x' does not appear to be an IPv4 or IPv6 address")

    async def nothing(*_: object) -> None:
        return None

    for check in (reachability, leftovers):
        monkeypatch.setattr(check, "judge", judge)
    monkeypatch.setattr(Examination, "_visit", nothing)
    examination = Examination(INVITE.encode(), DoctorOptions(), lambda what: None)
    await examination.run()
    found = {(one.group, one.name): one for one in examination.findings}
    assert "judging ways to this machine failed: ValueError: 'x'" in found["doctor", "ways to this machine"].seen
    assert "judging leftovers failed" in found["doctor", "leftovers"].seen
    assert {("coordinator", "broker"), ("this machine", "port"), ("this machine", "versions")} <= found.keys()


# the looks together


@pytest.mark.process
async def test_a_driver_that_hangs_is_given_up_and_all_else_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here it is torch itself that does; it holds what it likes, and does not listen."""
    (tmp_path / "torch.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    examination = Examination("no invite", DoctorOptions(), lambda what: None, LookLimits(device=1.0))
    async with asyncio.timeout(30):
        await examination.run()
    assert "looking at this machine was given up after 1 s" in [one.seen for one in examination.findings]
    assert {"invite", "port", "leftovers", "versions"} <= {one.name for one in examination.findings}
    assert not any("checks.resources" in " ".join(child.cmdline()) for child in psutil.Process().children())


@pytest.mark.process
async def test_this_machine_is_looked_at_in_a_process_of_its_own() -> None:
    seen = await resources.look(None, "cpu")
    assert seen.device.startswith("cpu")
    assert min(seen.memory, seen.disk) > 0
    with pytest.raises(UserError, match="--device abacus: choose"):
        await resources.look(None, "abacus")


async def test_this_machine_and_the_other_peers_are_looked_at_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)

    async def wait(*_: object) -> resources.ResourcesObservation:
        await both.wait()
        return resources.ResourcesObservation("cpu", 1 << 40, 1 << 40, 1024)

    monkeypatch.setattr(resources, "look", wait)
    monkeypatch.setattr(Examination, "_visit", wait)
    examination = Examination(INVITE.encode(), DoctorOptions(), lambda what: None, LookLimits(device=10.0))
    await examination.run()
    assert "doctor" not in {one.group for one in examination.findings}


async def test_all_looks_end_within_half_a_minute_though_one_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = LookLimits()
    assert max(usual.broker, usual.swarm, usual.device) <= usual.total < 30

    async def nothing(*_: object) -> None:
        return None

    async def late(*_: object) -> broker.BrokerObservation:
        await asyncio.sleep(0.4)
        job: Any = object()
        return broker.BrokerObservation(host("open"), entered=True, job=job)

    async def never(*_: object) -> Need:
        await asyncio.Event().wait()
        return Need()

    monkeypatch.setattr(examine, "need_of", never)
    monkeypatch.setattr(broker, "look", late)
    monkeypatch.setattr(Examination, "_visit", nothing)
    monkeypatch.setattr(resources, "look", nothing)
    examination = Examination(INVITE.encode(), DoctorOptions(), lambda what: None, LookLimits(total=0.8))
    begun = time.monotonic()
    await examination.run()
    assert time.monotonic() - begun < 12.0 < usual.need
    assert any("looking at what the job needs was given up" in one.seen for one in examination.findings)


# the clock


@pytest.mark.parametrize(
    ("ahead", "error", "verdict"),
    [
        (None, 0.0, Verdict.warn),
        (0.2, 0.1, Verdict.good),
        (-1.5, 0.1, Verdict.warn),
        (4.0, 0.1, Verdict.bad),
        (-3600.0, 0.1, Verdict.bad),
        (1.5, 1.0, Verdict.good),
    ],
)
def test_the_clocks_offset_is_judged_beyond_what_is_uncertain(
    ahead: float | None, error: float, verdict: Verdict
) -> None:
    (said,) = clock_offset.judge(ahead, error)
    assert said.verdict is verdict
    if ahead == -3600.0:
        assert "3,600.0 s ahead of" in said.seen


# this machine


def test_a_port_that_is_taken_is_told_and_the_one_beside_it_matters_less() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert "taken" in ports.judge(ports.look(HOST, port))[0].seen
    assert ports.judge([ports.Port(HOST, 7701), ports.Port(HOST, 7702, 98)])[1].verdict is Verdict.warn
    assert worst(ports.judge(ports.look(HOST, 0))) is Verdict.good
    assert "no address of this machine" in ports.judge(ports.look("192.0.2.77", 0))[0].seen


def test_a_state_dir_in_use_is_told(tmp_path: Path) -> None:
    state = tmp_path / "node"
    assert leftovers.judge(leftovers.look(state))[0].verdict is Verdict.good
    assert not state.exists()
    with locked(state):
        said = leftovers.judge(leftovers.look(state))[0]
    assert said.verdict is Verdict.warn
    assert f"process {os.getpid()}" in said.seen
    (state / "key").write_bytes(b"")
    (state / "key").chmod(0o644)
    assert any("chmod 600" in one.todo for one in leftovers.judge(leftovers.look(state)))
    assert leftovers.judge(leftovers.look(state / "key" / "node"))[0].verdict is Verdict.bad


def test_what_killed_nodes_left_is_told() -> None:
    assert "kill 17 18" in leftovers.judge(leftovers.LeftoversObservation(daemons=(17, 18)))[0].todo
    assert "3 folders" in leftovers.judge(leftovers.LeftoversObservation(folders=3))[0].seen


def test_memory_disk_and_open_files_are_compared_with_the_job() -> None:
    need = Need(smallest_stage=10 << 30, corpus=1 << 20)
    small = resources.ResourcesObservation("cpu", memory=1 << 30, disk=1 << 30, open_files=256)
    verdicts = {one.name: one.verdict for one in resources.judge(small, need)}
    assert verdicts == {"memory": Verdict.bad, "disk": Verdict.warn, "open files": Verdict.warn}
    large = resources.ResourcesObservation("cpu", memory=64 << 30, disk=64 << 30, open_files=1024)
    assert worst(resources.judge(large, need)) is Verdict.good
    assert worst(resources.judge(large, None)) is Verdict.good
    assert worst(resources.judge(large, Need(fault="no such architecture"))) is Verdict.bad


def test_the_memory_of_a_gpu_and_of_its_machine_are_told_apart() -> None:
    need = Need(smallest_stage=10 << 30, smallest_apart=6 << 30, apart_host=4 << 30)

    def verdicts(memory: int, host: int | None) -> list[tuple[str, Verdict]]:
        seen = resources.ResourcesObservation("gpu", memory << 30, 64 << 30, 1024, host and host << 30)
        return [(one.name, one.verdict) for one in resources.judge(seen, need) if one.name.startswith("memory")]

    assert verdicts(8, 5) == [("memory", Verdict.good), ("memory beside", Verdict.good)]
    assert verdicts(8, 3) == [("memory", Verdict.good), ("memory beside", Verdict.bad)]
    assert verdicts(5, 64) == [("memory", Verdict.bad), ("memory beside", Verdict.good)]
    assert verdicts(8, None) == [("memory", Verdict.bad)]
    plain = Need(smallest_stage=6 << 30, smallest_apart=6 << 30)
    gpu = resources.ResourcesObservation("gpu", 8 << 30, 64 << 30, 1024, 1)
    assert [one.name for one in resources.judge(gpu, plain)] == ["memory", "disk", "open files"]


def test_what_a_job_needs_beside_a_gpu_is_what_it_offloads(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    kept, moved = (
        work_out(job.model_copy(update={"training": job.training.model_copy(update={"offload": what})}))
        for what in ("nothing", "optimizer")
    )
    assert (kept.smallest_apart, kept.apart_host) == (kept.smallest_stage, 0)
    assert moved.smallest_stage == kept.smallest_stage
    assert moved.apart_host > 0
    assert moved.smallest_apart < moved.smallest_stage <= moved.smallest_apart + moved.apart_host


def test_libraries_of_other_versions_are_told() -> None:
    asked = ["numpy<2.4,>=1.26", "hivemind<1.2,>=1.1.11"]
    (said,) = versions.judge({"numpy": "2.4.1", "hivemind": "1.1.12"}, asked)
    assert said.todo.startswith("pip install 'numpy")
    assert worst(versions.judge({"numpy": "2.3.5"}, asked)) is Verdict.bad
    assert worst(versions.judge({"numpy": "2.3.5", "hivemind": "1.1.12"}, asked)) is Verdict.good
    assert worst(versions.judge({}, [], fault="libcudart.so is missing")) is Verdict.bad
    assert worst(versions.judge(*versions.look())) is Verdict.good
    assert versions.judge_others("1", ["1", "2"]) == []
    assert versions.judge_others("1", ["2"])[0].verdict is Verdict.warn
