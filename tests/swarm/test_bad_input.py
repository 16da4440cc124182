"""What a person gets wrong gives one clear line, exit code 2, and nothing lost."""

import json
import os
import shutil
import signal
import socket

import pytest

from dtfm_protocol.identity.invite import PROTOCOL_VERSION
from dtfm_protocol.identity.keys import Identity
from tests.harness.invites import invite_to
from tests.harness.swarm import Swarm

pytestmark = pytest.mark.process
DEAD = invite_to(Identity.generate(), 9)


def one_line(said: str, *words: str) -> None:
    """The output is one line that begins with "error:" and has all `words`."""
    lines = [line for line in said.strip().splitlines() if not line[:2].isdigit()]
    assert len(lines) == 1, said
    assert lines[0].startswith("error: ")
    assert all(word in lines[0] for word in words), (said, words)


@pytest.mark.parametrize(
    ("invite", "words"),
    [
        ("hello", ["not an invite"]),
        (DEAD.encode()[:-12], ["cut short or damaged"]),
        (DEAD.encode().replace(f"dtfm{PROTOCOL_VERSION}.", "dtfm7."), ["version 7", f"speaks {PROTOCOL_VERSION}"]),
        ("@/nowhere/invite", ["cannot read the invite"]),
    ],
    ids=["foreign", "truncated", "of another version", "no file"],
)
async def test_a_bad_invite_is_refused(swarm: Swarm, invite: str, words: list[str]) -> None:
    """Foreign, truncated, of another protocol version, or no file."""
    code, said = await swarm.run("dtfm-node", "join", "--yes", invite, "--state-dir", swarm.folder / "node")
    assert code == 2
    one_line(said, *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("steps = 20", "step = 20"), ["training.step", "unknown key"]),
        (("steps = 20", "steps = -20"), ["training.steps", "-20"]),
        (("num_attention_heads = 4", "num_attention_heads = 5"), ["heads"]),
        (('text = "cpython"', 'text = ["nothing/*.txt"]'), ["nothing/*.txt"]),
        (('architecture = "llama"', 'architecture = "lama"'), ["lama"]),
        (("micro_batch = 1", "micro_batch = 3"), ["micro_batch", "multiple"]),
        (("sequence_length = 32", "sequence_length = 99999"), ["tokens"]),
        (("[model]", "[model"), ["TOML"]),
    ],
)
async def test_a_bad_job_file_is_refused_with_the_key_named(
    swarm: Swarm, change: tuple[str, str], words: list[str]
) -> None:
    """By `serve` and by `solo` alike."""
    job = swarm.job()
    job.write_text(job.read_text().replace(*change), encoding="utf-8")
    for script, command in (("dtfm-coordinator", "serve"), ("dtfm-node", "solo")):
        code, said = await swarm.run(script, command, job, "--state-dir", swarm.folder / command)
        assert code == 2
        one_line(said, *words)


async def test_a_layout_that_cannot_be_is_refused_before_any_text_is_read(swarm: Swarm) -> None:
    """Once it waited for nodes for ever. `check` says so, too, and `swarm` also where it starts too few nodes."""
    job = swarm.job()
    whole = job.read_text()
    job.write_text(whole + "[plan]\nstages = 5\n", encoding="utf-8")
    for command in (["serve"], ["swarm", "--nodes", "5"]):
        state = swarm.folder / command[0]
        code, said = await swarm.run("dtfm-coordinator", *command, job, "--state-dir", state)
        assert code == 2
        one_line(said, "stages = 5", "4 layers")
        assert not (state / "tokens").exists()
    told = json.loads((swarm.folder / "serve" / "status.json").read_text())["overview"]["health"]
    assert told["sentence"].startswith("The coordinator has stopped: [plan] stages = 5"), told
    code, said = await swarm.run("dtfm-coordinator", "check", job)
    assert code == 2
    assert "cannot be served: 1 mistake" in said
    job.write_text(whole + "[plan]\nstages = 4\n", encoding="utf-8")
    code, said = await swarm.run("dtfm-coordinator", "swarm", job, "--nodes", "3", "--state-dir", swarm.folder / "few")
    assert code == 2
    one_line(said, "--nodes 3", "needs 4 nodes")


async def test_a_coordinator_that_cannot_be_reached_is_said_after_the_stated_time(swarm: Swarm) -> None:
    """The address and the time are named."""
    code, said = await swarm.run(
        "dtfm-node", "join", "--yes", DEAD.encode(), "--state-dir", swarm.folder / "node", "--timeout", "2"
    )
    assert code == 2
    one_line(said, "127.0.0.1:9", "2 s")


async def test_a_port_that_is_taken_is_named(swarm: Swarm) -> None:
    """`serve` does not fall back to another one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = await swarm.run(
            "dtfm-coordinator", "serve", swarm.job(), "--state-dir", swarm.folder / "coordinator",
            "--listen", "127.0.0.1", "--port", str(port),
        )  # fmt: skip
    assert code == 2
    one_line(said, str(port), "--port")


async def test_a_state_dir_that_cannot_be_written_is_refused(swarm: Swarm) -> None:
    """A file stands where the folder should be."""
    (swarm.folder / "file").write_text("")
    code, said = await swarm.run(
        "dtfm-node", "join", "--yes", DEAD.encode(), "--state-dir", swarm.folder / "file" / "node"
    )
    assert code == 2
    one_line(said, "state dir", "--state-dir")


async def test_a_state_dir_in_use_a_second_identity_and_missing_nodes(swarm: Swarm) -> None:
    """A live process keeps its state dir; a copied key is turned away; the coordinator says how many nodes it lacks."""
    coordinator = await swarm.serve(swarm.job(), "--min-nodes", "3")
    node = await swarm.join(name="node")
    await swarm.until(lambda: "waiting for 2 more nodes" in swarm.status().get("text", ""), "two are missing")

    code, said = await swarm.run(
        "dtfm-node", "join", "--yes", f"@{swarm.folder}/coordinator/invite", "--state-dir", swarm.folder / "node"
    )
    assert code == 2
    one_line(said, "in use", str(node.pid))

    (swarm.folder / "twin").mkdir()
    shutil.copy(swarm.folder / "node" / "key", swarm.folder / "twin" / "key")
    twin = await swarm.join(name="twin")
    assert await twin.exit_code() == 2
    one_line(twin.said(), "another node with the identity", "--state-dir")

    assert node.alive
    assert coordinator.alive
    for process in (node, coordinator):
        process.signal(signal.SIGINT)
        assert await process.exit_code() == 130
    assert swarm.leftovers() == []


async def test_a_swarm_whose_nodes_have_too_little_memory_waits_and_the_node_says_what_it_needs(swarm: Swarm) -> None:
    """The node stays available: the line names what it has and what the smallest stage takes."""
    await swarm.serve(swarm.job(), "--min-nodes", "1")
    node = await swarm.join("--memory", "0.00001")
    await swarm.until(lambda: "smallest stage" in node.said(), "the node says that it is too small")
    await swarm.until(lambda: "smallest stage" in swarm.status().get("text", ""), "the coordinator says so, too")
    assert node.alive
    assert "this node offers" in node.said()


async def test_a_forced_plan_beyond_what_a_node_offers_is_not_begun_and_the_owner_sees_why(swarm: Swarm) -> None:
    """Nobody takes memory for it; the coordinator names the node, and what it asks for."""
    layout = swarm.plan([[0, 4]], ["a"] * 8)
    coordinator = await swarm.serve(swarm.job(), "--plan", layout, "--min-nodes", "1")
    node = await swarm.join("--memory", "0.00001")
    await swarm.until(lambda: "asks for" in coordinator.said(), "the coordinator says why there is no step")
    assert "stalled (plan 1 asks for" in coordinator.said()
    assert node.alive
    assert swarm.rows() == []


async def test_another_job_in_the_same_state_dir_is_refused(swarm: Swarm) -> None:
    """A run's state is never mixed with another job's."""
    state = swarm.folder / "solo"
    job = swarm.job(steps=4)
    code, said = await swarm.run("dtfm-node", "solo", job, "--state-dir", state)
    assert code == 0, said
    before = (state / "metrics.jsonl").read_bytes()
    job.write_text(job.read_text().replace("learning_rate = 1e-3", "learning_rate = 2e-3"), encoding="utf-8")
    code, said = await swarm.run("dtfm-node", "solo", job, "--state-dir", state)
    assert code == 2
    one_line(said, "training.learning_rate", "--state-dir")
    assert (state / "metrics.jsonl").read_bytes() == before


async def test_plan_refuses_bad_views_in_one_line(swarm: Swarm) -> None:
    """Wrong shapes, negative entries, duplicate ids, fewer nodes than stages."""
    good = {
        "nodes": [{"id": "a"}, {"id": "b"}],
        "latency_ms": [[0, 1], [1, 0]],
        "bandwidth_gbps": [[0, 1], [1, 0]],
    }
    cases = [
        ({**good, "latency_ms": [[0, 1]]}, ["latency_ms"]),
        ({**good, "bandwidth_gbps": [[0, -1], [1, 0]]}, ["bandwidth_gbps", "negative"]),
        ({**good, "nodes": [{"id": "a"}, {"id": "a"}]}, ["twice"]),
        (good, ["3 stages"]),
    ]
    path = swarm.folder / "view.json"
    for values, words in cases:
        path.write_text(json.dumps(values), encoding="utf-8")
        code, said = await swarm.run(
            "dtfm-coordinator", "plan", path, "--stages", "3", "--activation-bytes", "1e6", "--gradient-bytes", "1e6"
        )
        assert code == 2
        one_line(said, *words)


async def test_status_export_and_generate_without_a_run_say_so(swarm: Swarm) -> None:
    """No traceback for a folder that holds nothing."""
    os.makedirs(swarm.folder / "empty")
    for script, command in (
        ("dtfm-node", ["status"]),
        ("dtfm-node", ["remove", "--yes"]),
        ("dtfm-coordinator", ["status"]),
        ("dtfm-coordinator", ["export", swarm.folder / "out"]),
        ("dtfm-coordinator", ["generate", "--prompt", "x"]),
    ):
        code, said = await swarm.run(script, *command, "--state-dir", swarm.folder / "empty")
        assert code == 2
        one_line(said)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["join", "--state-dir", "x"], ["no invite", "@FILE", "--help"]),
        (["join", "-", "--state-dir", "x"], ["no invite"]),
        (["doctor"], ["no invite", "@FILE", "--help"]),
        (["join", "x"], ["not an invite"]),
        (["join", DEAD.encode(), "--state-dir", "x"], ["--yes", "terminal"]),
        (["solo", "job.toml"], ["--state-dir"]),
        (["bench", "--threads", "0"], ["--threads"]),
        (["train"], ["train"]),
    ],
)
async def test_a_wrong_option_is_one_line(swarm: Swarm, arguments: list[str], words: list[str]) -> None:
    """A missing or impossible argument, an unknown command."""
    code, said = await swarm.run("dtfm-node", *arguments)
    assert code == 2
    one_line(said, *words)
