"""Wrong jobs stop a service at once: here the text is none, which is looked at last."""

from pathlib import Path

import pytest

from dtfm_coordinator.serve.start_check import check_start
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.plan.plan import Plan

pytestmark = pytest.mark.unit

JOB = """
name = "tiny"
[model]
architecture = "llama"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
[data]
text = ["text.txt"]
tokenizer = "bytes"
[training]
steps = 5
global_batch = 4
micro_batch = 1
sequence_length = 8
learning_rate = 1e-3
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a text that is not UTF-8."""
    (tmp_path / "text.txt").write_bytes(b"\xff" * 1000)
    return tmp_path


def job(home: Path, more: str = "", change: tuple[str, str] = ("", "")) -> Job:
    (home / "job.toml").write_text(JOB.replace(*change) + more)
    return Job.load(home / "job.toml")


@pytest.mark.parametrize(
    ("more", "change", "words"),
    [
        ("[plan]\nstages = 5", ("", ""), r"stages = 5, but the model has 2 layers.*lower stages"),
        ("[plan]\nreplicas = 9", ("", ""), r"replicas = 9, but a step has 4 micro-batches"),
        ("", ("global_batch = 4", "global_batch = 70000"), "micro_batch = 2 or more"),
        ("", ("global_batch = 4", "global_batch = 400"), "at most 1000 tokens, but 3201 are needed"),
        ("[evaluation]\nevery = 1\nsequences = 200", ("", ""), "1601 for evaluation"),
        ("", ('"text.txt"', '"gone/*.txt"'), r"no file matches .*gone/\*\.txt"),
        ("", ('"bytes"', '"nowhere"'), "no tokenizer folder"),
        ("", ('"bytes"', '"bpe:12"'), "bpe:257"),
        ("", ("num_key_value_heads = 2", "num_key_value_heads = 3"), "num_key_value_heads"),
        ("", ("num_hidden_layers = 2", "max_position_embeddings = 4"), "less than training.sequence_length"),
    ],
)
def test_a_wrong_job_is_said_before_its_text_is_read(
    home: Path, more: str, change: tuple[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check_start(job(home, more, change), home / "state")
    assert not (home / "state").exists()


def test_a_job_whose_text_alone_is_wrong_is_refused_too(home: Path) -> None:
    with pytest.raises(UserError, match=r"text\.txt is not UTF-8 \(byte 0\)"):
        check_start(job(home, "[plan]\nstages = 2\nreplicas = 4"), home / "state", nodes=8)


def test_fewer_nodes_than_the_layout_needs_are_said(home: Path) -> None:
    with pytest.raises(UserError, match=r"--nodes 7: the job's \[plan\] needs 8 nodes: give --nodes 8"):
        check_start(job(home, "[plan]\nstages = 2\nreplicas = 4"), home / "state", nodes=7)


@pytest.mark.parametrize(
    ("layers", "routes", "nodes", "words"),
    [
        (3, 4, 2, "cover 3 layers and the model has 2"),
        (2, 5, 2, "5 routes and a step has 4"),
        (2, 4, 1, "--plan needs 2 nodes"),
    ],
)
def test_a_forced_plan_that_does_not_fit_is_said(home: Path, layers: int, routes: int, nodes: int, words: str) -> None:
    """What [plan] says beside it does not matter."""
    forced = Plan(stages=((0, 1), (1, layers)), routes=(("a", "b"),) * routes)
    (home / "plan.json").write_text(forced.model_dump_json())
    with pytest.raises(UserError, match=words):
        check_start(job(home, "[plan]\nstages = 5"), home / "state", home / "plan.json", nodes)


def test_a_folder_that_was_prepared_for_the_job_is_not_checked_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes wait for a coordinator that comes back."""
    (home / "text.txt").write_text("to be or not to be, that is the question. " * 40)
    good = job(home)
    prepare(good, home / "state", lambda line: None)

    def fail(job: Job) -> int:
        raise AssertionError("the model was laid out")

    monkeypatch.setattr("dtfm_coordinator.serve.start_check.layer_count", fail)
    check_start(good, home / "state")
    with pytest.raises(AssertionError):
        check_start(job(home, "[plan]\nstages = 2"), home / "state")
