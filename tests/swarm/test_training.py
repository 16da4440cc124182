"""A swarm of processes trains what one process trains, and leaves nothing behind."""

import asyncio
import json
import re
import signal
import tomllib
from pathlib import Path

import pytest
import torch
from docs.generate.state_files import COORDINATOR_FILES, NODE_FILES, StateFile, unlisted
from transformers import AutoModelForCausalLM, AutoTokenizer

from dtfm_protocol.control.contribution_record import ContributionRecord
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.stage import loss_sum
from dtfm_protocol.model.whole_model import build_whole
from tests.harness.swarm import Swarm, solo
from tests.swarm.reference import CURVE, alone, same_curve

pytestmark = pytest.mark.process


async def test_a_local_swarm_trains_exports_and_generates_what_one_process_would(swarm: Swarm) -> None:
    """`swarm` on three nodes gives the curve of `solo`, bit-identical replicas, and a model that transformers loads."""
    job = swarm.job(steps=20)
    state = swarm.folder / "coordinator"
    told = swarm.folder / "told"
    code, said = await swarm.run(
        "dtfm-coordinator", "swarm", job, "--nodes", "3", "--state-dir", state, "--on-event", f"sh -c 'cat >> {told}'"
    )
    assert code == 0, said
    assert '"done"' in told.read_text(), "its owner is told of the end"
    assert swarm.leftovers() == []
    rows = swarm.rows()
    same_curve(rows, await solo(swarm.folder, job))
    assert all(row["plan_version"] == 1 and row["predicted_seconds"] > 0 for row in rows)
    plan = swarm.layout()
    assert plan["signature"]
    assert {peer for route in plan["pipelines"] for peer in route} | set(plan["idle"]) == {
        node["id"] for node in json.loads((state / "view.json").read_text())["nodes"]
    }

    manifest = json.loads((state / "checkpoints" / "step-00000020" / "manifest.json").read_text())
    for stage in manifest["replicas"]:
        assert len(set(stage.values())) == 1

    code, said = await swarm.run("dtfm-coordinator", "export", "--state-dir", state, swarm.folder / "model")
    assert code == 0, said
    card = (swarm.folder / "model" / "README.md").read_text()
    trained = {peer for route in plan["pipelines"] for peer in route}
    assert f"from random weights by {len(trained)} machine" in card, card
    owner = Invite.decode((state / "invite").read_text().strip()).coordinator
    records = [ContributionRecord.parsed(path.read_bytes()) for path in state.glob("nodes/*/contribution.json")]
    statements = [record.said_by(owner) for record in records]
    assert {said.peer for said in statements} == trained, "each node has the record of its part when it ends"
    assert sum(said.share for said in statements) == pytest.approx(1.0)
    for said in statements:
        assert f"| {said.peer[-6:]} | {100 * said.share:.1f} % | 20 |" in card, card
        assert (said.first_step, said.last_step, said.of_layers) == (1, 20, 4)
    model = AutoModelForCausalLM.from_pretrained(swarm.folder / "model").eval()
    assert AutoTokenizer.from_pretrained(swarm.folder / "model").decode([72, 105]) == "Hi"
    resolved = ResolvedJob.model_validate_json((state / "job.json").read_text())
    batches = Batches(resolved.corpus, resolved.training, resolved.evaluation)
    reader = TokenReader(resolved.corpus, ShardFolder(state / "tokens"))
    total = 0.0
    for index in range(batches.evaluation_micro_batches):
        window = torch.from_numpy(batches.evaluation_micro_batch(index, reader.read))
        with torch.no_grad():
            total += float(loss_sum(model(window[:, :-1]).logits, window[:, 1:]))
    assert total / batches.evaluation_tokens == pytest.approx(rows[-1]["eval_loss"], rel=CURVE)

    code, said = await swarm.run("dtfm-coordinator", "generate", "--state-dir", state, "--prompt", "The")
    assert code == 0, said
    assert said.strip()
    code, said = await swarm.run("dtfm-coordinator", "status", "--state-dir", state, "--json")
    assert code == 0
    assert json.loads(said)["phase"] == "done"
    assert json.loads(said)["step"] == 20
    code, said = await swarm.run("dtfm-coordinator", "swarm", job, "--nodes", "3", "--state-dir", state)
    assert (code, "is done: all 20 steps are trained. Nothing was started." in said) == (0, True), said
    nodes = [StateFile(f"nodes/NUMBER/{one.path}", one.text) for one in NODE_FILES]
    assert unlisted(state, (*COORDINATOR_FILES, *nodes)) == [], "the reference lists all files"


async def test_uneven_layers_and_shares_of_a_forced_plan_give_the_same_curve(swarm: Swarm) -> None:
    """A layout with placeholders is forced: one peer before two of unequal shares, one layer before three."""
    job = swarm.job(steps=10, tied=False)
    layout = swarm.plan([[0, 1], [1, 4]], ["ab", "ab", "ac", "ab", "ab", "ac", "ab", "ab"])
    state = swarm.folder / "coordinator"
    code, said = await swarm.run(
        "dtfm-coordinator", "swarm", job, "--nodes", "3", "--plan", layout, "--state-dir", state
    )
    assert code == 0, said
    same_curve(swarm.rows(), await alone(job))
    shares = sorted(len([r for r in swarm.layout()["routes"] if peer in r]) for peer in _peers(swarm))
    assert shares == [2, 6, 8]


async def test_orders_follow_what_machines_take_and_the_curve_does_not_notice(swarm: Swarm) -> None:
    """The plan says of the second stage's machines, which are alike, that one is ten times as fast as the other."""
    swarm.slow_down()
    job = swarm.job(steps=12)
    layout = swarm.plan([[0, 2], [2, 4]], ["ab", "ab", "ac", "ab"] * 2)
    in_flight, links = [4, 3, 2], {key: [0, 0] for key in ("ahead", "ahead_delay", "back", "back_delay")}
    pacing = {"forward": [10_000, 30_000, 3_000], "backward": [20_000, 60_000, 6_000], **links}
    pacing |= {"in_flight": in_flight, "kept": in_flight}
    plan = json.loads(layout.read_text(encoding="utf-8")) | {"pacing": pacing, "follows_durations": True}
    layout.write_text(json.dumps(plan), encoding="utf-8")
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--plan", layout, "--exit-when-done")
    nodes = [await swarm.join() for _ in range(3)]
    assert [await process.exit_code() for process in (coordinator, *nodes)] == [0, 0, 0, 0], coordinator.tail()
    same_curve(swarm.rows(), await alone(job))
    said = [
        set(re.findall(r"order of work follows new durations of 3 machines from step \d+ on", node.said()))
        for node in nodes
    ]
    assert len(said[0]) == 1, nodes[0].tail()
    assert said[0] == said[1] == said[2], "all change at one step"


def _peers(swarm: Swarm) -> set[str]:
    return {peer for route in swarm.layout()["routes"] for peer in route}


@pytest.mark.parametrize("kept", ["", 'optimizer = "adamw-8bit"\nweights = "bf16"\n'], ids=["fp32", "less"])
async def test_replicas_on_unlike_processors_hold_the_same_bits_to_the_end(swarm: Swarm, kept: str) -> None:
    """One of them has torch without AVX2, AVX-512 and their fused products and sums."""
    job = swarm.job(steps=20, checkpoint=10)
    text = job.read_text(encoding="utf-8").replace("learning_rate = 1e-3\n", f"learning_rate = 1e-3\n{kept}")
    job.write_text(text, encoding="utf-8")
    coordinator = await swarm.serve(job, "--plan", swarm.plan([[0, 4]], ["a", "b"] * 4), "--exit-when-done")
    nodes = [await swarm.join(), await swarm.join(within=("env", "ATEN_CPU_CAPABILITY=default"))]
    assert [await process.exit_code() for process in (coordinator, *nodes)] == [0, 0, 0], coordinator.tail()
    (replicas,) = _states_of_replicas(swarm, 20)
    assert len(replicas) == 2
    same_curve(swarm.rows(), await alone(job), near=0.01 if kept else None)


async def test_a_run_that_was_stopped_goes_on_with_another_number_of_nodes_and_stages(swarm: Swarm) -> None:
    """Everything is stopped with Ctrl+C after a checkpoint; the curve over both lives is the uninterrupted one, under
    another update and schedule than other tests have."""
    swarm.slow_down()
    job = swarm.job(steps=40, checkpoint=10)
    update = 'optimizer = "sgd"\nschedule = "warmup-stable-decay"\nschedule_decay = 15\nschedule_floor = 0.0\n'
    text = job.read_text(encoding="utf-8").replace("learning_rate = 1e-3\n", f"learning_rate = 0.05\n{update}")
    job.write_text(text, encoding="utf-8")
    coordinator = await swarm.serve(job, "--plan", swarm.plan([[0, 2], [2, 4]], ["ab"] * 8))
    nodes = [await swarm.join(name=f"node-{n}") for n in range(2)]
    await swarm.until(swarm.checkpoints, "a checkpoint is kept")
    for process in [*nodes, coordinator]:
        process.signal(signal.SIGINT)
    assert [await process.exit_code() for process in [*nodes, coordinator]] == [130, 130, 130]
    assert swarm.leftovers() == []
    assert len(swarm.rows()) < 40

    layout = swarm.plan([[0, 1], [1, 2], [2, 4]], ["abc"] * 8)
    coordinator = await swarm.serve(job, "--plan", layout, "--exit-when-done")
    nodes = [await swarm.join(name=f"node-{n}") for n in range(3)]
    assert [await process.exit_code() for process in [coordinator, *nodes]] == [0, 0, 0, 0]
    assert swarm.leftovers() == []
    stopped = swarm.layout()["resume"]["mark"]["step"]
    assert stopped >= 10
    same_curve(swarm.rows(), await alone(job), stopped)


METHODS = {
    "all is trained": "",
    "adapters are trained beside int8 weights": (
        'method = "lora"\nlora = {r = 4, target_modules = ["q_proj", "down_proj"], base = "int8"}\n'
    ),
}


def begin_pretrained(job: Path, method: str) -> None:
    """Have a job begin with the weights of a model in a folder, of which it trains a part."""
    text = job.read_text(encoding="utf-8")
    begin, end = text.index("[model]"), text.index("[data]")
    fields = tomllib.loads(text[begin:end])["model"]
    build_whole(resolve_config(Model.model_validate(fields), 257, 32), seed=4).save_pretrained(job.parent / "model")
    data = text[end:].replace("[data]\n", '[data]\ntokenizer = "bytes"\n')
    text = f'{text[:begin]}[model]\npath = "model"\n{data}'
    job.write_text(text.replace("[training]\n", f"[training]\n{method}"), encoding="utf-8")


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
async def test_a_killed_node_is_replaced_by_a_spare_and_the_curve_does_not_notice(swarm: Swarm, method: str) -> None:
    """kill -9 of a stage's only replica: the swarm plans anew from the newest checkpoint, with the idle node. What is
    not trained, and lies in pieces, that node has from whoever else has it."""
    swarm.slow_down()
    job = swarm.job(steps=20, checkpoint=5, tied=not method)
    if method:
        begin_pretrained(job, method)
    layout = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--plan", layout, "--exit-when-done")
    nodes = {}
    for n in range(3):
        nodes[n] = await swarm.join(name=f"node-{n}")
    await swarm.until(lambda: len(swarm.rows()) >= 7, "some steps are done")
    victim = next(n for n in nodes if json.loads((swarm.folder / f"node-{n}" / "status.json").read_text())["step"] > 0)
    nodes[victim].signal(signal.SIGKILL)
    assert await coordinator.exit_code() == 0
    assert swarm.layout()["version"] == 2
    await asyncio.gather(*(node.exit_code() for node in nodes.values()))
    same_curve(swarm.rows(), await alone(job))


CHAT = """{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{- message['content'] + eos_token }}{%- endgeneration %}
    {%- else %}{{- message['content'] + ' ' }}{%- endif %}
{%- endfor %}"""


def teach_conversations(job: Path) -> None:
    """Have a job learn what an assistant says, in conversations of which several share a sequence."""
    (job.parent / "chat.jinja").write_text(CHAT, encoding="utf-8")
    turns = [(f"{number}+{number}?", f"It is {2 * number}.") for number in range(500)]
    rows = [[{"role": "user", "content": asked}, {"role": "assistant", "content": said}] for asked, said in turns]
    lines = [json.dumps({"messages": messages}) for messages in rows]
    (job.parent / "chat.jsonl").write_text("\n".join(lines), encoding="utf-8")
    data = 'packing = true\nchat_template = "chat.jinja"\nsources = [{path = "chat.jsonl", kind = "messages"}]\n'
    job.write_text(job.read_text(encoding="utf-8").replace('text = "cpython"\n', data), encoding="utf-8")


async def test_replicas_learn_conversations_as_one_process_does_though_one_of_them_is_killed(swarm: Swarm) -> None:
    """Adapters beside int8 weights, on packed conversations: kill -9 of one of two replicas, whose states were the same
    bits; a spare takes its place, and theirs are again at the end."""
    swarm.slow_down()
    job = swarm.job(steps=20, checkpoint=5)
    begin_pretrained(job, METHODS["adapters are trained beside int8 weights"])
    teach_conversations(job)
    layout = swarm.plan([[0, 2], [2, 4]], ["ab", "cb"] * 4)
    coordinator = await swarm.serve(job, "--min-nodes", "4", "--plan", layout, "--exit-when-done")
    nodes = [await swarm.join(name=f"node-{n}") for n in range(4)]
    await swarm.until(swarm.checkpoints, "a checkpoint is kept")
    assert sorted(map(len, _states_of_replicas(swarm, 5))) == [1, 2]
    victim = swarm.serving(0)[0]
    victim.signal(signal.SIGKILL)
    assert await coordinator.exit_code() == 0
    assert swarm.layout()["version"] == 2
    assert [await node.exit_code() for node in nodes if node is not victim] == [0, 0, 0]
    assert sorted(map(len, _states_of_replicas(swarm, 20))) == [1, 2]
    same_curve(swarm.rows(), await alone(job))


def _states_of_replicas(swarm: Swarm, step: int) -> list[dict[str, str]]:
    """The digests of each stage's state by its replicas, of which all are the same."""
    checkpoint = swarm.folder / "coordinator" / "checkpoints" / f"step-{step:08}" / "manifest.json"
    found: list[dict[str, str]] = json.loads(checkpoint.read_text())["replicas"]
    assert all(len(set(one.values())) == 1 for one in found)
    return found


async def test_training_goes_on_without_the_coordinator_and_its_return_misses_nothing(swarm: Swarm) -> None:
    """kill -9 of the coordinator: peers train on; a new one on the same state dir finds them and gets every row."""
    swarm.slow_down()
    job = swarm.job(steps=60, checkpoint=10)
    layout = swarm.plan([[0, 2], [2, 4]], ["ab", "ac"] * 4)
    coordinator = await swarm.serve(job, "--min-nodes", "3", "--plan", layout)
    nodes = [await swarm.join(name=f"node-{n}") for n in range(3)]
    await swarm.until(lambda: len(swarm.rows()) >= 5, "some steps are done")
    coordinator.signal(signal.SIGKILL)
    await coordinator.exit_code()
    reached = len(swarm.rows())
    status = swarm.folder / "node-0" / "status.json"
    await swarm.until(lambda: json.loads(status.read_text())["step"] > reached + 10, "the peers train on")
    coordinator = await swarm.serve(job, "--plan", layout, "--exit-when-done")
    assert [await process.exit_code() for process in [coordinator, *nodes]] == [0, 0, 0, 0]
    rows = swarm.rows()
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert {row["plan_version"] for row in rows} == {1}
