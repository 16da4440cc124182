"""Named points at which a test has a process end or wait: what may be asked for, and that it happens once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.fault_injection import POINTS, InjectedFault, armed, parse, point

STEPS = """
from dtfm_protocol.process.fault_injection import armed, point
for step in range(1, 5):
    point("before-send", step)
    point("before-vote", step)
    print(step, armed("before-vote", step), flush=True)
"""


def run(script: str = STEPS, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def steps(said: str) -> list[int]:
    return [int(line.split()[0]) for line in said.splitlines()]


def test_what_is_to_happen_is_read_from_one_line() -> None:
    assert parse("before-vote@3:kill,mid-frame:stop,after-plan@12:sleep=0.5") == [
        InjectedFault("before-vote", 3, "kill"),
        InjectedFault("mid-frame", 0, "stop"),
        InjectedFault("after-plan", 12, "sleep=0.5"),
    ]
    assert parse("") == []
    assert [fault.name for fault in parse(",".join(f"{name}:kill" for name in POINTS))] == list(POINTS)


@pytest.mark.parametrize(
    "text",
    [
        "nowhere:kill",
        "before-vote",
        "before-vote:",
        "before-vote:explode",
        "before-vote@x:kill",
        "before-vote@-1:kill",
        "before-vote@1.5:kill",
        "before-vote:sleep=",
        "before-vote:sleep=long",
        "before-vote:sleep=-1",
        "before-vote:sleep=1.2.3",
        "before-vote:kill,nowhere:kill",
        ":kill",
    ],
)
def test_what_is_no_fault_is_named_on_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"DTFM_FAULT: .* is not NAME@STEP:ACTION") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.process
def test_where_nothing_is_asked_for_nothing_happens() -> None:
    assert not any(armed(name, 99) for name in POINTS)
    for name in POINTS:
        point(name, 99)
    assert steps(run().stdout) == [1, 2, 3, 4]


@pytest.mark.process
def test_a_process_is_killed_at_the_step_that_was_asked_for() -> None:
    ended = run(DTFM_FAULT="before-vote@3:kill")
    assert ended.returncode == -signal.SIGKILL
    assert steps(ended.stdout) == [1, 2]
    assert ended.stderr == ""


@pytest.mark.process
def test_a_point_without_a_step_is_met_the_first_time() -> None:
    assert steps(run(DTFM_FAULT="before-send:kill").stdout) == []


@pytest.mark.process
def test_a_fault_happens_once_and_is_announced_before() -> None:
    ended = run(DTFM_FAULT="before-vote@2:sleep=0.01,before-vote@4:sleep=0.01")
    assert ended.returncode == 0
    # At step 2 the first one has been used up, and the second one is not due.
    assert ended.stdout.split() == ["1", "False", "2", "False", "3", "False", "4", "False"]
    script = "from dtfm_protocol.process.fault_injection import armed, point\n"
    script += 'print(armed("before-vote", 2), armed("before-vote", 1))\n'
    script += 'point("before-vote", 2)\nprint(armed("before-vote", 2))'
    assert run(script, DTFM_FAULT="before-vote@2:sleep=0").stdout.split() == ["True", "False", "False"]


@pytest.mark.process
def test_a_process_is_stopped_until_it_is_told_to_go_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STEPS],
        env=os.environ | {"DTFM_FAULT": "before-vote@2:stop"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    assert steps(out) == [1, 2, 3, 4]


@pytest.mark.process
def test_a_fault_may_be_asked_for_while_the_process_runs(tmp_path: Path) -> None:
    path = tmp_path / "fault"
    script = f"""
from pathlib import Path
from dtfm_protocol.process.fault_injection import point
for step in range(1, 5):
    if step == 3:
        Path({str(path)!r}).write_text("before-vote:kill")
    point("before-vote", step)
    print(step, flush=True)
"""
    ended = run(script, DTFM_FAULT_FILE=str(path))
    assert ended.returncode == -signal.SIGKILL
    assert steps(ended.stdout) == [1, 2]


@pytest.mark.process
def test_a_variable_that_cannot_be_read_ends_the_process_before_it_does_anything() -> None:
    ended = run(DTFM_FAULT="nowhere:kill")
    assert ended.returncode == 1
    assert "UserError: DTFM_FAULT: 'nowhere:kill' is not NAME@STEP:ACTION" in ended.stderr
