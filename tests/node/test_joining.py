"""Joining for the first time: the person at the machine is told what it means, and agrees, before anything is made."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtfm_node.commands import kept_invite
from dtfm_node.commands.chosen_limits import ChosenLimits
from dtfm_node.commands.consent import CONSENT, Consent
from dtfm_node.commands.gpu_look import gpu_here
from dtfm_node.commands.kept_options import said_of
from dtfm_node.commands.terms import Terms, terms_here
from dtfm_node.devices.device_folders import DEVICES
from dtfm_node.limits.availability import Rules
from dtfm_node.limits.hours import Hours
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.quantities import GB
from dtfm_protocol.process.state_dir import locked
from tests.harness.daemon import BIN
from tests.harness.invites import invite_to
from tests.harness.terminal import Terminal

DEAD = invite_to(Identity.generate(), 9)
"""An invite to where nobody is."""
ELSEWHERE = invite_to(Identity.generate(), 9, swarm="ab" * 8)
"""An invite to another swarm, where nobody is either."""
QUESTION = "Take part? [y/N] "


def terms(limits: ChosenLimits, gpu: str = "") -> Terms:
    data = Path("/home/ann/.local/share/dtfm")
    folder, records = data / "nodes" / "3f9c0d1e2a4b5c6d", data / "contributions"
    return Terms("3f9c0d1e2a4b5c6d", "train.example.org:7700", folder, "", limits, 12 * GB, 100 * GB, gpu, records)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (
            ChosenLimits(),
            [
                "all of the processor; no GPU was found",
                "12 GB",
                "100 GB, half of what",
                "sees what its key (or --name) does",
            ],
        ),
        (ChosenLimits("cpu", 1), ["1 thread of the processor (--threads)"]),
        (ChosenLimits("auto", 16), ["16 threads of the processor; no GPU"]),
        (
            ChosenLimits("cuda:1", memory_gb=4),
            ["the device cuda:1", "at most 4 GB to train, 8 GB for moments; 2.15 GB for"],
        ),
        (ChosenLimits(disk_gb=100), ["at most 100 GB (--disk)"]),
        (ChosenLimits(upload=1.25e6, download=1.25e8), ["sends at most 10 Mbit/s, receives at most 1,000 Mbit/s"]),
        (ChosenLimits(upload=1.25e6), ["sends at most 10 Mbit/s, receives as fast as it can"]),
        (
            ChosenLimits(rules=Rules(Hours.parsed("22:30-6:45,12-13"), True, True, True)),
            ["22:30-6:45, 12-13; when idle, not on battery, not metered"],
        ),
        (ChosenLimits(memory_gb=12.5), ["at most 12.5 GB to train, 25 GB for moments"]),
        (ChosenLimits(name="A" * 32), [f"sees what {'A' * 32} does and when"]),
        (ChosenLimits(rules=Rules(Hours.parsed("1:10-2:20,3:30-4:40,5:50-6:10"))), ["in your --hours"]),
    ],
)
def test_the_terms_fit_a_small_terminal_and_say_the_limits_in_force(limits: ChosenLimits, words: list[str]) -> None:
    screen = terms(limits).screen()
    lines = screen.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 22, "with the question it fits 24 lines"
    assert all(word in screen for word in words), screen


def test_a_gpu_is_called_by_its_name() -> None:
    screen = terms(ChosenLimits(), "GeForce RTX 4070 Laptop GPU of the longest kind").screen()
    assert "the GPU GeForce RTX 4070 Laptop, if torch can use it (--device)" in screen
    assert "or what the GPU has free" in screen
    assert max(map(len, screen.splitlines())) <= 80


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it asks otherwise")
def test_a_gpu_is_looked_for_without_torch() -> None:
    assert gpu_here(["echo", "NVIDIA H100\x1b[2J\nNVIDIA H100"]).startswith("H100")
    assert "\x1b" not in gpu_here(["echo", "NVIDIA H100\x1b[2J"])
    assert gpu_here(["false"]) == gpu_here(["no-such-program"]) == gpu_here(["true"]) == ""


def test_each_start_says_what_is_allowed_and_how_to_take_it_back() -> None:
    said = said_of(
        ChosenLimits("cpu", 1, 2, 20, 2.5e6, rules=Rules(Hours.parsed("19-23"), not_on_battery=True), name="Ann's PC"),
        Path("/x/dtfm-node.toml"),
    )
    assert said == (
        'this machine is called "Ann\'s PC"; what you allow: computes on cpu, 1 thread, at most 2 GB of memory, keeps '
        "at most 20 GB, sends at most 20 Mbit/s, works 19-23 only, not on battery; to take something back, put a # "
        "before its line in /x/dtfm-node.toml"
    )
    assert "you have set no limits" in said_of(ChosenLimits(), Path("/x"))


def test_the_terms_say_what_is_kept_sent_and_seen_and_how_to_end_it() -> None:
    screen = terms(ChosenLimits()).screen()
    for word in ("training text", "/home/ann/", "addresses", "device", "speed", "leave", "remove", "Members can read",
                 "A record of your part stays in /home/ann/.local/share/dtfm/contributions",
                 "dtfm-node contribution --delete"):  # fmt: skip
        assert word in screen


def test_what_an_invite_says_does_nothing_to_the_terminal() -> None:
    foreign = Terms("3f" * 8, "\x1b[2Jhost:1", Path("/a\nb"), "", ChosenLimits("\x1b]0;x"), 0, 0)
    assert "\x1b" not in foreign.screen()
    assert len(foreign.screen().splitlines()) == len(terms(ChosenLimits()).screen().splitlines())


def test_limits_on_this_machine_count_what_the_folder_holds_already(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(b"x" * 1000)
    here = terms_here("3f" * 8, "host:1", tmp_path, "", ChosenLimits("cpu", disk_gb=2))
    assert here.disk_most == 2 * GB
    assert here.memory_free > 0
    assert terms_here("3f" * 8, "host:1", tmp_path / "not" / "there", "", ChosenLimits("cpu")).disk_most > 0


def test_a_consent_is_for_one_swarm_and_one_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Consent(tmp_path / "a", "1" * 16).keep()
    Consent(tmp_path / "a", "2" * 16).keep()
    for swarm in ("1" * 16, "2" * 16):
        assert Consent(tmp_path / "a", swarm).obtain(never)
    for folder, swarm in (("a", "3" * 16), ("b", "1" * 16)):
        with pytest.raises(UserError, match=r"nobody has agreed .* give --yes"):
            Consent(tmp_path / folder, swarm).obtain(lambda: terms(ChosenLimits()))


@pytest.mark.parametrize("text", ["{", '{"terms": 0, "swarms": ["1111111111111111"]}', '{"terms": 1, "swarms": 3}'])
def test_a_consent_to_other_terms_or_a_damaged_one_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / CONSENT).write_text(text)
    consent = Consent(tmp_path, "1" * 16)
    with pytest.raises(UserError, match="give --yes"):
        consent.obtain(lambda: terms(ChosenLimits()))
    consent.keep()
    assert consent.obtain(never)


def never() -> Terms:
    raise AssertionError("somebody is asked who has agreed")


# -- a folder of another swarm ----------------------------------------------------------------------------------------


def test_a_folder_is_joined_with_again_by_any_invite_to_its_swarm(tmp_path: Path) -> None:
    """Another address, another token, or another owner's key; an empty folder, or none, is free for all."""
    kept_invite.check_swarm(DEAD.swarm, tmp_path / "none")
    kept_invite.check_swarm(DEAD.swarm, tmp_path)
    kept_invite.keep(DEAD, tmp_path)
    again = invite_to(Identity.generate(), 10, "127.0.0.2", swarm=DEAD.swarm)
    kept_invite.check_swarm(again.swarm, tmp_path)
    kept_invite.keep(again, tmp_path)
    kept_invite.check_swarm(DEAD.swarm, tmp_path)


@pytest.mark.parametrize("below", ["", f"{DEVICES}/cuda-0"])
def test_a_folder_of_another_swarm_is_refused_with_what_to_do(tmp_path: Path, below: str) -> None:
    """Be it the folder itself or that of a device below it: `remove` is told the one above, which deletes both."""
    folder = tmp_path / "a b"
    (folder / below).mkdir(parents=True)
    kept_invite.keep(DEAD, folder / below)
    with pytest.raises(UserError) as caught:
        kept_invite.check_swarm(ELSEWHERE.swarm, folder)
    said = str(caught.value)
    assert f"the state folder {folder / below} belongs to the swarm {DEAD.swarm}, and" in said
    assert f"another one, {ELSEWHERE.swarm}: name another folder with --state-dir" in said
    assert f"`dtfm-node remove --state-dir '{folder}'`" in said
    assert "\n" not in said


@pytest.mark.parametrize("text", ["", "dtfm4.e30.00000000", "\x00\xff"])
def test_a_kept_invite_that_cannot_be_read_keeps_nobody_out(tmp_path: Path, text: str) -> None:
    """Say, one for an earlier version of the protocol: with the invite of now the same swarm is joined again."""
    (tmp_path / kept_invite.INVITE).write_bytes(text.encode("latin-1"))
    kept_invite.check_swarm(DEAD.swarm, tmp_path)


# -- at a terminal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with an empty home."""
    return os.environ | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"), "TMPDIR": str(tmp_path)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The state folder that nobody has named."""
    return tmp_path / "data" / "dtfm" / "nodes" / DEAD.swarm


@pytest.fixture
def at_terminal(environment: dict[str, str]) -> Iterator[Terminal]:
    """A node that joins at a terminal, with the invite as an argument."""
    with Terminal.running([str(BIN / "dtfm-node"), "join", DEAD.encode()], environment) as terminal:
        yield terminal


@pytest.mark.process
@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\n", 1), ("\x04", 1), ("yess\n", 1), ("\x03", 130)])
def test_whoever_does_not_agree_leaves_nothing_behind(
    tmp_path: Path, at_terminal: Terminal, answer: str, code: int
) -> None:
    """No, nothing, the end of input, something else, and Ctrl+C."""
    at_terminal.until(QUESTION)
    at_terminal.type(answer)
    assert at_terminal.exit_code() == code
    assert list(tmp_path.iterdir()) == []
    assert "not joined: nothing was kept, and nothing sent" in at_terminal.shown
    assert "Traceback" not in at_terminal.shown


@pytest.mark.process
def test_whoever_agrees_is_not_asked_again(at_terminal: Terminal, environment: dict[str, str], folder: Path) -> None:
    """Not even where there is no terminal: a restart needs nobody. Another swarm is another question."""
    at_terminal.until(QUESTION)
    assert str(folder) in at_terminal.shown
    at_terminal.type("y\n")
    assert at_terminal.exit_code() == 2
    assert "no coordinator answers" in at_terminal.shown
    assert (folder / CONSENT).exists()
    again = run(environment, DEAD.encode())
    assert again.returncode == 2
    assert "no coordinator answers" in again.stderr
    other = run(environment, ELSEWHERE.encode(), "--state-dir", str(folder.with_name("mine")))
    assert other.returncode == 2
    assert "nobody has agreed" in other.stderr


@pytest.mark.process
def test_the_folder_of_one_swarm_is_not_joined_with_for_another(
    tmp_path: Path, environment: dict[str, str], folder: Path
) -> None:
    """Nothing starts, and nothing is lost: not even the limits that come with the refused command are kept."""
    with locked(folder):
        Consent(folder, DEAD.swarm).keep()
        kept_invite.keep(DEAD, folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    refused = run(environment, ELSEWHERE.encode(), "--yes", "--threads", "1", "--state-dir", str(folder))
    assert refused.returncode == 2
    (error,) = [line for line in refused.stderr.splitlines() if line.startswith("error: ")]
    for words in (DEAD.swarm, ELSEWHERE.swarm, str(folder), "--state-dir", "dtfm-node remove --state-dir"):
        assert words in error
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.process
def test_the_invite_and_the_answer_may_come_from_one_terminal(tmp_path: Path, environment: dict[str, str]) -> None:
    """First it asks for the invite, then whether to take part; what was pasted behind the invite is no answer."""
    with Terminal.running([str(BIN / "dtfm-node"), "join"], environment) as terminal:
        terminal.until("invite (it is not shown): ")
        terminal.type(DEAD.encode() + "\ny\n")
        terminal.until(QUESTION)
        assert DEAD.encode() not in terminal.shown
        terminal.type("n\n")
        assert terminal.exit_code() == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_without_a_terminal_it_says_to_give_yes_and_ends(tmp_path: Path, environment: dict[str, str]) -> None:
    ended = run(environment, "-", given=DEAD.encode())
    assert ended.returncode == 2
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert "--yes" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_it_says_something_before_it_imports_what_takes_long(environment: dict[str, str]) -> None:
    """It waits for its invite when the first line is there, and has not imported what takes seconds."""
    slow = {"torch", "hivemind", "transformers", "numpy", "scipy"}
    look = (
        "import sys; from dtfm_node.main import main; sys.argv = ['dtfm-node', 'join', '-']\n"
        f"try: main()\nfinally: print(sorted({slow!r} & set(sys.modules)))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", look], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert "dtfm-node" in process.stderr.readline()
        out, said = process.communicate(DEAD.encode())
    assert out == "[]\n", "imported before it has asked whether to take part"
    assert "--yes" in said


def run(environment: dict[str, str], *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "dtfm-node"), "join", *arguments]
    return subprocess.run(command, env=environment, input=given or "", capture_output=True, text=True, check=False)
