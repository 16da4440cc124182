"""What the machine tells of its battery, its users and its network, and what others' words for that mean."""

import os
from typing import Any, NamedTuple

import psutil
import pytest

from dtfm_node.limits.machine_readings import (
    FAMILY,
    TOOL_SECONDS,
    SystemReadings,
    core_seconds_of_others,
    gpu_is_taken,
    idle_since,
    metered,
    on_battery,
    own_family,
)

PMON = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       4242     C     97     40      -      -      -      -    python
    0       1000     G      {sm}      1      -      -      -      -    Xorg
"""


@pytest.mark.parametrize(
    ("said", "since"),
    [
        ("IdleHint=no\nIdleSinceHint=1700000000000000\n", 0.0),
        ("IdleHint=yes\nIdleSinceHint=1700000000500000\n", 1700000000.5),
        ("IdleHint=yes\nIdleSinceHint=0\n", None),
        ("IdleHint=\n", None),
        ("", None),
    ],
)
def test_the_login_managers_word_on_input(said: str, since: float | None) -> None:
    assert idle_since(said) == since


@pytest.mark.parametrize(
    ("said", "is_metered"), [("u 1\n", True), ("u 2", False), ("u 3", True), ("u 4", False), ("u 0", None), ("", None)]
)
def test_the_network_managers_word_on_what_is_metered(said: str, is_metered: bool | None) -> None:
    assert metered(said) is is_metered


@pytest.mark.parametrize(
    ("sm", "me", "taken"), [("3", 4242, False), ("-", 4242, False), ("80", 4242, True), ("3", 1, True)]
)
def test_another_program_on_the_gpu_counts_where_it_computes(sm: str, me: int, taken: bool) -> None:
    assert gpu_is_taken(PMON.format(sm=sm), me) is taken


@pytest.mark.parametrize(("plugged", "expected"), [(True, False), (False, True), (None, None)])
def test_a_battery_that_is_not_plugged_in_is_in_use(
    plugged: bool | None, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Battery:
        power_plugged = plugged

    monkeypatch.setattr(psutil, "sensors_battery", Battery, raising=False)
    assert on_battery() is expected
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert on_battery() is False, "a machine without a battery is not on it"


async def test_programs_that_are_not_there_tell_nothing_and_are_asked_seldom() -> None:
    asked: list[str] = []

    async def ask(program: str, *arguments: Any) -> str | None:
        asked.append(program)
        return None

    readings = SystemReadings(gpu=0, ask=ask)
    first, second = await readings.read(), await readings.read()
    assert sorted(asked) == ["busctl", "loginctl", "nvidia-smi"], f"once in {TOOL_SECONDS} s"
    assert first[1:3] == (None, None)
    assert first.is_metered is None
    assert first.load_of_others is None
    assert second.load_of_others is not None
    assert second.load_of_others >= 0.0


async def test_what_nobody_wants_to_know_is_not_asked_for() -> None:
    async def ask(program: str, *arguments: Any) -> str | None:
        raise AssertionError(program)

    reading = await SystemReadings(use=False, network=False, gpu=0, ask=ask).read()
    assert reading[1:] == (None, None, None, None)


async def test_a_program_that_is_there_is_believed() -> None:
    async def ask(program: str, *arguments: Any) -> str | None:
        return {"busctl": "u 1", "loginctl": "IdleHint=no", "nvidia-smi": PMON.format(sm=50)}[program]

    reading = await SystemReadings(gpu=0, ask=ask).read()
    assert (reading.idle_seconds, reading.other_gpu_use, reading.is_metered) == (0.0, True, True)


def test_own_work_is_no_load_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Times(NamedTuple):
        user: float
        system: float

    class Own:
        """A process of the node's."""

        def __init__(self, nice: int) -> None:
            self.nice = lambda: nice

        def cpu_times(self) -> Times:
            return Times(user=300.0, system=40.0)

    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(user=500.0, system=100.0))
    for nice, others in ((0, 600.0 - 340.0), (19, 600.0 - 40.0)):  # what is nice is not in the system's `user`
        own: Any = Own(nice)
        monkeypatch.setattr(psutil, "Process", lambda own=own: own)
        assert core_seconds_of_others((own,)) == others


def test_nodes_of_the_machines_other_devices_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_family().pid == os.getpid()
    monkeypatch.setenv(FAMILY, "1")
    assert own_family().pid == os.getpid(), "only who has started it may say so"
    monkeypatch.setenv(FAMILY, str(os.getppid()))
    assert own_family().pid == os.getppid()
