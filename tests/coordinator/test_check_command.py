"""`dtfm-coordinator check`: what it says of a job is what serving it would find, and all mistakes come at once."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.job_demand import workload
from dtfm_coordinator.allocator.problem.model_demand import memory_needed
from dtfm_coordinator.allocator.problem.stage_needs import depths, smallest_stage_bytes_of, stage_needs
from dtfm_coordinator.tools.check.command import HomeMachines, check
from dtfm_coordinator.tools.check.forecast import forecasts
from dtfm_coordinator.tools.check.job_findings import job_findings
from dtfm_coordinator.tools.check.job_screen import device_gb, show
from dtfm_lab.networks.alike_homes import GPU, LINE, alike_homes, machine_in_words
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.text_size import text_size
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job, Planning, Wire
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage_demand import smallest_stage_bytes
from dtfm_protocol.plan.plan import Plan

pytestmark = pytest.mark.unit

JOB = """
name = "tiny"
[model]
architecture = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 6
num_attention_heads = 2
num_key_value_heads = 2
[data]
text = ["text.txt"]
[training]
steps = 50
global_batch = 12
micro_batch = 1
sequence_length = 16
learning_rate = 1e-3
[evaluation]
every = 10
sequences = 4
"""
HOMES = HomeMachines(alike_homes, machine_in_words)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 100)
    return tmp_path


def written(home: Path, more: str = "", *changes: tuple[str, str]) -> Path:
    text = JOB + more
    for change in changes:
        assert change[0] in text
        text = text.replace(*change)
    (home / "job.toml").write_text(text)
    return home / "job.toml"


def said(home: Path, capsys: pytest.CaptureFixture[str], more: str = "", *changes: tuple[str, str]) -> dict:
    """What --json says."""
    passed = check(written(home, more, *changes), HOMES, (2,), as_json=True, evaluations=50)
    found = json.loads(capsys.readouterr().out)
    assert passed == (not found["mistakes"])
    return found


def test_the_epochs_are_those_of_the_batches(home: Path) -> None:
    job = Job.load(written(home))
    work = workload(job)
    found = job_findings(job, lambda job: ("llama", work.demand), lambda job: text_size(job.data))
    corpus = tokenize(job.data, home / "tokens").corpus
    batches = Batches(corpus, job.training, job.evaluation)
    assert found.text is not None
    assert found.text.epochs == pytest.approx(50 * 12 / batches.training_windows)
    assert found.text.held_out_tokens == batches.evaluation_tokens + 1
    assert found.mistakes == ()


def test_parameters_and_the_smallest_stage_are_those_that_nodes_work_out(home: Path) -> None:
    job = Job.load(written(home))
    demand, config = workload(job).demand, resolve_config(job.model, 257, 16)
    assert demand.parameters(0, demand.layers) == model_sizes(config).total
    assert smallest_stage_bytes_of(demand) == smallest_stage_bytes(config, job.training)


def test_states_in_less_than_fp32_take_less_memory(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a stage 16 bytes a parameter, or 8 and a scale of each moment for every 256; by nodes' own rule, too."""
    less = ("learning_rate = 1e-3", 'learning_rate = 1e-3\noptimizer = "adamw-8bit"\nweights = "bf16"')
    whole = workload(Job.load(written(home))).demand
    small = workload(Job.load(written(home, "", less))).demand
    parameters = whole.parameters(1, 3)
    saved = whole.memory_bytes(1, 3, 2) - small.memory_bytes(1, 3, 2)
    assert saved == pytest.approx(parameters * (8 - 8 / 256), abs=1)
    config = resolve_config(Job.load(written(home)).model, 257, 16)
    assert smallest_stage_bytes_of(small) == smallest_stage_bytes(config, Job.load(written(home, "", less)).training)
    found, before = said(home, capsys, "", less), said(home, capsys)
    assert found["model"]["smallest_stage_bytes"] == smallest_stage_bytes_of(small)
    assert before["model"]["smallest_stage_bytes"] == smallest_stage_bytes_of(whole)
    check(written(home, "", less), HOMES, (2,), as_json=False, evaluations=50)
    assert "trained in fp32, weights kept in bf16" in " ".join(capsys.readouterr().out.split())


def test_states_that_gpus_leave_in_the_machines_memory_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = ("learning_rate = 1e-3", 'learning_rate = 1e-3\noffload = "optimizer"')
    demand = workload(Job.load(written(home))).demand
    found, before = said(home, capsys, "", away), said(home, capsys)
    assert found["model"]["by_depth"][0]["host_bytes"] == 8 * demand.parameters(0, demand.layers)
    assert before["model"]["by_depth"][0]["host_bytes"] == 0
    assert found["model"]["by_depth"][0]["memory_bytes"] == before["model"]["by_depth"][0]["memory_bytes"]
    check(written(home, "", away), HOMES, (2,), as_json=False, evaluations=50)
    assert "A GPU leaves what the optimizer keeps in the machine's memory" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "gpipe"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_memory_by_depth_is_that_of_a_plan_of_all_micro_batches(home: Path, schedule: str, replicas: int) -> None:
    demand = workload(Job.load(written(home))).demand
    planning = Planning.model_validate({"schedule": schedule, "replicas": replicas, "wire": "int8"})
    for stages in depths(demand.layers, planning):
        spans = tuple((n * 6 // stages, (n + 1) * 6 // stages) for n in range(stages))
        routes = tuple(tuple(f"{stage}/{n % replicas}" for stage in range(stages)) for n in range(48))
        plan = Plan(stages=spans, routes=routes, schedule=planning.schedule, wire=planning.wire)
        anew = plan.model_copy(update={"recompute": tuple(range(stages))})
        needs = stage_needs(demand, 48, planning, stages)
        assert needs.memory_bytes == max(memory_needed(plan, demand).values())
        assert needs.recomputed_bytes == max(memory_needed(anew, demand).values())


def test_depths_are_powers_of_two_all_layers_and_what_the_owner_fixes() -> None:
    assert depths(6, Planning()) == (1, 2, 4, 6)
    assert depths(6, Planning(stages=3)) == (1, 2, 3, 4, 6)
    assert depths(6, Planning(stages=7)) == (1, 2, 4, 6)
    assert depths(1, Planning()) == (1,)


def test_bytes_over_a_boundary_go_by_the_wire_codecs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = 12 * 16 * 32  # tokens of a step, and the hidden size
    boundary = said(home, capsys)["model"]["boundary"]
    assert boundary == {"ahead_bytes": 4 * values, "back_bytes": 4 * values}
    boundary = said(home, capsys, '[plan.wire]\nactivations = "bf16"\ngradients = "int8"')["model"]["boundary"]
    assert boundary == {"ahead_bytes": 2 * values, "back_bytes": values + 4 * values // 128}
    assert said(home, capsys)["model"]["coarse_boundary"] is None
    coarse = said(home, capsys, '[plan]\nwire = "bf16"\nslow_wire = "int8"')["model"]["coarse_boundary"]
    assert coarse == {"ahead_bytes": values + 4 * values // 128, "back_bytes": values + 4 * values // 128}
    slow = written(home, '[plan]\nwire = "bf16"\nslow_wire = "int8"')
    check(slow, HOMES, (2,), as_json=False, evaluations=50)
    told = " ".join(capsys.readouterr().out.split())
    assert "back over each boundary, in bf16. Over slow ones it may be 6.34 kB and 6.34 kB, in int8." in told


def test_a_tied_embedding_is_reduced_between_first_and_last_stage(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(home, capsys)["model"]["tied_gradient_bytes"] == 0
    tied = ("num_hidden_layers = 6", "num_hidden_layers = 6\ntie_word_embeddings = true")
    found = said(home, capsys, '[plan]\nwire = "bf16"', tied)["model"]
    assert found["tied_gradient_bytes"] == 2 * 257 * 32


def test_hours_are_the_allocators_own(home: Path) -> None:
    job = Job.load(written(home))
    work = workload(job)
    (one, two, four) = forecasts(work, 50, (1, 2, 4), alike_homes, evaluations=300)
    plan = allocate(alike_homes(4), work, evaluations=300)
    assert plan.cost is not None
    assert four.step_seconds == pytest.approx(plan.cost.total)
    assert four.hours == pytest.approx(50 * plan.cost.total / 3600)
    assert (four.stages, four.used) == (len(plan.stages), len(plan.peers))
    assert (one.machines, one.used, two.why_none) == (1, 1, "")


def test_too_few_machines_have_the_reason_beside_them(home: Path) -> None:
    job = Job.load(written(home, "[plan]\nstages = 3"))
    (two,) = forecasts(workload(job), 50, (2,), alike_homes, evaluations=50)
    assert "3 machines at least" in two.why_none


def test_the_stated_machine_is_one_of_the_made_up_homes() -> None:
    view = alike_homes(3)
    assert all(node.flops == GPU.flops for node in view.nodes)
    assert (view.bandwidth_gbps[0, 1], view.nodes[0].down_gbps) == (LINE.up_gbps, LINE.down_gbps)
    assert f"{GPU.name} with" in machine_in_words("bf16")
    assert "10 TFLOP/s in bf16" in machine_in_words("bf16")
    assert "5.1 TFLOP/s in fp32" in machine_in_words("fp32")


def test_all_mistakes_of_a_job_are_said_at_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(home, capsys, "[plan]\nstages = 7\nreplicas = 13", ("sequences = 4", "sequences = 4000"))
    assert len(found["mistakes"]) == 3
    for words in ("replicas = 13", "stages = 7, but the model has 6 layers", "64001 for evaluation"):
        assert any(words in line for line in found["mistakes"])
    assert found["forecasts"] == []


def test_mistakes_of_keys_and_values_are_said_with_all_others(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = (
        ('"tiny"', '"my first run"'),
        ("micro_batch = 1", "micro_batch = 5"),
        ("steps = 50", "steps = 50\nepochs = 3"),
        ('"llama"', '"lama"'),
        ('["text.txt"]', '["gone.txt"]'),
    )
    found = said(home, capsys, "", *changes)["mistakes"]
    words = ("epochs: unknown key", "name: use letters", "not a multiple of micro_batch (5)", "lama", "no file matches")
    assert [any(word in line for line in found) for word in words] == [True] * 5
    assert len(found) == 5


def test_a_mistake_of_the_tokenizer_hides_none_of_the_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = (('["text.txt"]', '["text.txt"]\ntokenizer = "nowhere"'),)
    found = said(home, capsys, "[plan]\nstages = 9", *changes)["mistakes"]
    assert ["stages = 9, but the model has 6 layers" in line for line in found].count(True) == 1
    assert any("nowhere" in line for line in found)


@pytest.mark.parametrize(
    ("more", "change", "words"),
    [
        ("", ("global_batch = 12", "global_batch = 1200"), "19201 for a step"),
        ("", ('["text.txt"]', '["text.txt"]\ntokenizer = "bpe:4000"'), "more than the text yields"),
        ("", ('["text.txt"]', '["text.txt"]\ntokenizer = "bpe:5000"'), "can yield: give fewer tokens"),
        ("", ('["text.txt"]', '["gone.txt"]'), "no file matches"),
        ("", ("num_hidden_layers = 6", "num_hidden_layers = -1"), "num_hidden_layers"),
        ("", ("steps = 50", "step = 50"), "unknown key"),
    ],
)
def test_what_only_tokenizing_would_find_is_found(
    home: Path, capsys: pytest.CaptureFixture[str], more: str, change: tuple[str, str], words: str
) -> None:
    (mistake,) = said(home, capsys, more, change)["mistakes"]
    assert words in mistake
    assert not (home / "tokens").exists()


@pytest.mark.parametrize(
    ("more", "change", "words"),
    [
        ("[plan]\nstages = 6\nreplicas = 4", ("steps = 50", "steps = 2"), "3 micro-batches cannot fill"),
        ("", ("steps = 50", "steps = 5000"), "each token is read"),
        ("[checkpoint]\nevery = 0", ("steps = 50", "steps = 2"), "until the last step"),
    ],
)
def test_what_may_not_be_meant_is_noted_and_stops_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], more: str, change: tuple[str, str], words: str
) -> None:
    found = said(home, capsys, more, change)
    assert (len(found["notes"]), found["mistakes"]) == (1, [])
    assert words in found["notes"][0]


def test_a_file_that_is_no_job_is_an_error_for_people_and_an_object_for_scripts(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "job.toml").write_text("[model")
    with pytest.raises(UserError, match="TOML"):
        check(home / "job.toml", HOMES)
    assert not check(home / "job.toml", HOMES, as_json=True)
    assert "TOML" in json.loads(capsys.readouterr().out)["mistakes"][0]


def test_of_conversations_it_says_what_is_learned_filled_up_and_cut_off(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "x" * 70}]
    long = [turns[0], {"role": "assistant", "content": "x" * 300}]
    late = [{"role": "user", "content": "x" * 300}, turns[1]]
    rows = [turns] * 80 + [long] * 3 + [late]
    (home / "chat.jsonl").write_text("\n".join(json.dumps({"messages": row}) for row in rows))
    (home / "chat.jinja").write_text("{% for one in messages %}{{ one.role[0] + one.content + eos_token }}{% endfor %}")
    changes = (
        ('text = ["text.txt"]', 'chat_template = "chat.jinja"\nsources = [{ path = "chat.jsonl", kind = "messages" }]'),
        ("sequence_length = 16", "sequence_length = 128"),
    )
    found = said(home, capsys, "", *changes)
    assert found["mistakes"] == []
    assert found["text"]["size"]["documents"] == 84
    # A conversation is a letter, "why?", an end, a letter, 70 letters, an end; the first letter of a turn is learned.
    learned = 80 * 72 + 3 * (128 - 6)
    layout = {"targets": learned, "padding": pytest.approx(80 * (128 - 78) / (83 * 128)), "cut": 4, "left_out": 1}
    assert found["text"]["size"]["layout"] == layout
    assert found["text"]["size"]["tokens"] == 83 * 128 + 1
    check(written(home, "", *changes), HOMES, (2,), evaluations=50)
    words = " ".join(capsys.readouterr().out.split())
    assert "text 84 conversations, " in words
    assert f"learned {learned:,} of 10,625 tokens are targets; 38 % fill sequences up; 4 conversations or" in words
    assert "are cut off; of 1 documents nothing is learned" in words


def test_the_screen_has_eighty_columns_and_every_part(home: Path) -> None:
    job = Job.load(written(home, "[plan]\nstages = 3\nreplicas = 2"))
    work = workload(job)
    large = work.demand.__class__(
        layer_parameters=(1_234_567_890,) * 6,
        embedding_parameters=10**9,
        head_parameters=10**9,
        message_values=10**8,
        layer_activation_bytes=10**10,
    )
    found = job_findings(
        job.model_copy(update={"plan": job.plan.model_copy(update={"wire": Wire(gradients="int8")})}),
        lambda job: ("llama", large),
        lambda job: text_size(job.data),
    )
    ahead = forecasts(work, 50, (2, 16), alike_homes, evaluations=300)
    out = io.StringIO()
    show(Console(file=out, width=200, markup=False), found, ahead, machine_in_words("fp32"))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for words in (
        "tiny: can be served",
        "9,407,407,340 parameters",
        "the job fixes 3 stages",
        "int8 gradients",
        "2: [plan]",
    ):
        assert words in out.getvalue()


def test_a_text_of_rows_is_said_with_what_is_not_counted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"body": f"{number} to be or not to be"}) for number in range(150_000)]
    (home / "rows.jsonl").write_text("\n".join(rows))
    change = ('text = ["text.txt"]', 'sources = [{ path = "*.jsonl", kind = "jsonl", column = "body" }]')
    assert check(written(home, "", change), HOMES, (2,), evaluations=50)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("text"))
    assert line.startswith("text      about 15")
    change = ('text = ["text.txt"]', 'sources = [{ path = "*.jsonl", kind = "jsonl" }]')
    (mistake,) = said(home, capsys, "", change)["mistakes"]
    assert 'rows.jsonl, line 1, has no "text", only body' in mistake


def test_mistakes_of_sources_are_said_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = ('text = ["text.txt"]', 'sources = [{ path = "a.jsonl", kind = "json" }]')
    (mistake,) = said(home, capsys, "", change)["mistakes"]
    assert "data.sources.0.kind: should be 'text', 'jsonl', " in mistake
    assert "'messages' or 'completions' (got 'json')" in mistake
    (mistake,) = said(home, capsys, "", ('text = ["text.txt"]', ""))["mistakes"]
    assert "data: give either text" in mistake


def test_a_device_is_the_smallest_that_has_so_much_free() -> None:
    assert device_gb(0.5e9) == 1
    assert device_gb(0.95e9) == 2
    assert device_gb(21.6e9) == 24
    assert device_gb(1e12) is None
