"""The card of a model says who has trained it and how, of the steps that led to it and no others."""

import json
from pathlib import Path

from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.serve.job_edits import remember
from dtfm_coordinator.tools.model_card import MEMBERS_NAMED, CardFacts, card
from dtfm_protocol.checkpoint.manifest import File, Manifest, TensorEntry
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.job_file import Job, Model, Sharing
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.peers import JOB, row
from tests.coordinator.test_member_records import plan
from tests.harness.membership import OWNER, invite_of

FILE = File(name="stage-0.safetensors", sha256="0" * 64, bytes=4_000_000)
WEIGHT = TensorEntry(file=FILE.name, sha256="0" * 64, dtype="F32", shape=(1000, 1000), offset=0, bytes=4_000_000)
MANIFEST = Manifest(
    job="tiny", config={"model_type": 'll"ama\n'}, step=20, plan_version=1, files=(FILE,), tensors={"weight/x": WEIGHT}
)


def made(folder: Path, *plans: Plan, **names: str) -> str:
    """The card of a run that has gone ten steps further than its newest checkpoint."""
    rows = MetricsFile(folder / "metrics.jsonl")
    for one in plans:
        append_shares(folder, one, rows, names=names)
    for step in range(1, 31):
        made = row(step, plan_version=1 if step <= 20 else 2)
        rows.append(made.model_copy(update={"loss": 3.0 - step / 20, "eval_loss": 2.5 if step == 10 else None}))
    return card(CardFacts.of(folder, MANIFEST))


def test_it_names_everybody_who_has_a_part_in_these_weights(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(JOB.model_dump_json())
    (tmp_path / "invite").write_text(invite_of(OWNER).encode() + "\n")
    said = made(tmp_path, plan(1, "ab", "ab"), plan(2, "c"), a="attic")
    for words in (
        "with 1 M parameters, trained from random weights by 2 machines of volunteers",
        "after step 20 of 90",
        "| b | 75.0 % | 20 |\n| attic (a) | 25.0 % | 20 |",
        "| Loss in training | 2.0000 nats a token in step 20 |",
        "| Loss on held-out text | 2.5000 nats a token after step 10 |",
        f"its coordinator {OWNER.peer_id}",
        f"`dtfm-node contribution --check FILE --coordinator {OWNER.peer_id}`",
        '"learning_rate": 0.001',
    ):
        assert words in said
    assert "| c |" not in said


def test_its_front_matter_is_what_hubs_read_whatever_the_config_says(tmp_path: Path) -> None:
    table = {"model": Model(architecture="llama"), "data": Data(text="cpython"), "training": JOB.training}
    remember(Job(name="tiny", **table, sharing=Sharing(model="members", license="apache-2.0")), tmp_path)
    lines = made(tmp_path, plan(1, "a")).split("\n---\n")[0].splitlines()
    assert lines[:5] == [
        "---", "library_name: transformers", "pipeline_tag: text-generation", 'license: "apache-2.0"', "tags:",
    ]  # fmt: skip
    assert [json.loads(line.removeprefix("- ")) for line in lines[5:]] == ["dtfm", "decentralized-training", 'll"ama ']


def test_of_very_many_members_the_others_are_counted(tmp_path: Path) -> None:
    peers = [f"p{number}" for number in range(MEMBERS_NAMED + 50)]
    many = Plan(version=1, stages=((0, 4),), routes=tuple((peer,) for peer in peers))
    said = made(tmp_path, many)
    assert "| and 50 more | 20.0 % | |" in said
    assert said.count("| 0.4 % | 20 |") == MEMBERS_NAMED


def test_of_a_checkpoint_without_a_run_there_is_a_card_too(tmp_path: Path) -> None:
    said = card(CardFacts.of(tmp_path, MANIFEST))
    assert "after step 20." in said
    assert "Who trained it" not in said
