"""A hostile job is met within a node's limits: what it asks for is known before anything of it is built."""

import json
import subprocess
import sys
from typing import Any

import pytest

from dtfm_coordinator.allocator.job_demand import requirements
from dtfm_coordinator.allocator.problem.model_demand import apart_of, host_memory_needed, memory_needed
from dtfm_node.engine.job_survey import JobSurvey, check_counts, confined_survey, local_survey, survey
from dtfm_node.runner.plan_check import prepare, why_refused
from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.checkpoint.transfers import SHARD_LIMIT
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Model, Planning, Training, Wire
from dtfm_protocol.job.job_limits import MOST_SEQUENCES
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.model import model_sizes
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.stage_demand import peer_demand, stage_demand
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.view.view import NodeView

GIB = 1 << 30
LLAMA = {
    "architecture": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
TRAINING: dict[str, Any] = {
    "steps": 20, "global_batch": 4, "micro_batch": 1, "sequence_length": 16, "learning_rate": 1e-3
}  # fmt: skip


def job(config: dict[str, Any] | None = None, *, architecture: dict[str, Any] = LLAMA, **training: Any) -> ResolvedJob:
    """A job of an honest config, with what a hostile coordinator writes over it."""
    honest = resolve_config(Model.model_validate(architecture), 257, 16)
    return ResolvedJob(
        name="j",
        config=honest | (config or {}),
        corpus=Corpus(dtype="uint16", vocab_size=257, shards=(Shard(sha256="0" * 64, tokens=4096),)),
        training=Training.model_validate(TRAINING | training),
        evaluation=Evaluation(every=5, sequences=4),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )


GPT_NEO = {"architecture": "gpt_neo", "hidden_size": 32, "num_layers": 4, "num_heads": 4,
           "attention_types": [[["global"], 4]]}  # fmt: skip
HOSTILE = {
    "a layer of 60 GB": (
        job({"hidden_size": 16384, "intermediate_size": 65536, "head_dim": 4096}),
        "says",
        "stays available",
    ),
    "a vocabulary of 10^9": (job({"vocab_size": 10**9}), "says", "ready"),
    "a head of 10^11": (job({"head_dim": 10**11}), "refused", ""),
    "tables of 100 GB": (
        job({"max_position_embeddings": 300_000}, architecture=GPT_NEO),
        "refused",
        "more than 2.15 GB",
    ),
    "a million layers": (job({"num_hidden_layers": 10**6}), "refused", "not a number of layers"),
    "long sequences": (job(sequence_length=1 << 24), "says", "stays available"),
    "sequences that take days": (
        job({"hidden_size": 8, "intermediate_size": 8, "head_dim": 2}, sequence_length=1 << 20),
        "says",
        "stays available",
    ),
    "the longest sequences that a job may have": (job(sequence_length=MOST_UINT32), "says", "stays available"),
}
"""Jobs, what becomes of them, and a part of what is said of it."""


@pytest.mark.process
def test_no_job_makes_a_node_take_more_than_it_offers_before_it_has_joined() -> None:
    """It offers a quarter of a GB; the libraries alone take half of one."""
    lines = "\n".join(one.model_dump_json() for one, _, _ in HOSTILE.values())
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.hostile_jobs"], input=lines, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for (name, (_, kind, words)), outcome in zip(HOSTILE.items(), found, strict=True):
        assert words in outcome.get(kind, ""), (name, outcome)
        assert "\n" not in outcome.get(kind, ""), name
        assert outcome["own"] < 1.5 * GIB, (name, outcome)
        assert outcome["copies"] < 3.5 * GIB, (name, outcome)


async def test_an_honest_job_is_told_its_needs() -> None:
    found = await local_survey(job())
    assert 0 < found.measuring <= found.smallest_stage < GIB


async def test_of_a_layer_that_is_not_trained_a_node_needs_the_weights_alone() -> None:
    frozen = job(method="frozen-layers", layers=(1, 3))
    assert (await local_survey(frozen)).smallest_stage < (await local_survey(job())).smallest_stage
    with pytest.raises(UserError, match="the model has 4 layers"):
        await local_survey(job(method="frozen-layers", layers=(1, 5)))
    with pytest.raises(UserError, match="wq names nothing in a llama"):
        await local_survey(job(method="lora", lora={"target_modules": ("wq",)}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": Training.model_validate(TRAINING | {"global_batch": 2 * MOST_SEQUENCES})}, "sequences"),
        ({"evaluation": Evaluation(every=1, sequences=MOST_SEQUENCES + 1)}, "evaluation"),
        (
            {"corpus": Corpus(dtype="uint32", vocab_size=9, shards=(Shard(sha256="0" * 64, tokens=SHARD_LIMIT),))},
            "shard",
        ),
    ],
)
def test_a_job_beyond_all_jobs_is_refused_without_a_look_at_its_model(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_counts(job().model_copy(update=change))


# -- plans ------------------------------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "frozen": {"method": "frozen-layers", "layers": (0, 2)},
    "lora": {"method": "lora", "lora": {"target_modules": ("q_proj", "down_proj")}},
}
ROUTES = (("a", "x"), ("b", "x"), ("a", "x"), ("a", "x"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("wire", [Wire(), Wire(activations="bf16", gradients="int8")])
@pytest.mark.parametrize(("stages", "routes"), [(((0, 3), (3, 4)), ROUTES), (((0, 4),), (("a",),) * 4)])
@pytest.mark.parametrize("recompute", [(), (0,)])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("method", METHODS)
def test_the_demand_of_a_plan_is_what_the_allocator_plans_with(
    schedule: Any, wire: Wire, stages: Any, routes: Any, recompute: tuple[int, ...], method: str, tied: bool
) -> None:
    one = job(architecture=LLAMA | {"tie_word_embeddings": tied}, **METHODS[method])
    plan = Plan(stages=stages, routes=routes, schedule=schedule, wire=wire, recompute=recompute)
    wanted = memory_needed(plan, requirements(one.config, one.training))
    assert {peer: stage_demand(one.config, one.training, plan, peer) for peer in plan.peers} == wanted


def test_a_plan_that_asks_for_more_than_is_offered_is_refused_with_both_figures() -> None:
    plan = Plan(version=7, stages=((0, 3), (3, 4)), routes=ROUTES)
    needed = stage_demand(job().config, job().training, plan, "x")
    assert why_refused(job(), plan, "x", needed) is None
    assert why_refused(job(), plan, "x", 0.95 * needed) is None  # another version of torch may count so
    refusal = why_refused(job(), plan, "x", 0.5 * needed)
    assert refusal is not None
    assert refusal.startswith("plan 7 asks for ")
    assert "--memory" in refusal
    assert why_refused(job(), plan, "spare", 0.0) is None


def test_states_that_are_offloaded_count_in_the_machines_memory_and_not_in_the_gpus() -> None:
    plan, whole = Plan(version=7, stages=((0, 3), (3, 4)), routes=ROUTES), job()
    away = job(offload="optimizer")
    for peer in plan.peers:
        own = peer_demand(away.config, away.training, plan, peer, apart=True)
        one = peer_demand(away.config, away.training, plan, peer)
        assert one == peer_demand(whole.config, whole.training, plan, peer)  # a processor's memory is one
        assert peer_demand(whole.config, whole.training, plan, peer, apart=True) == one
        assert (own.states, own.host) == (0, one.states)
        assert own.total + own.host == one.total
        nodes = [NodeView(id=peer, memory_bytes=1e9, host_bytes=1e9)]
        demand = requirements(away.config, away.training)
        assert memory_needed(plan, demand, apart_of(nodes))[peer] == own.total
        assert host_memory_needed(plan, demand, apart_of(nodes)) == {peer: own.host}
        assert why_refused(away, plan, peer, own.total, own.host) is None
        refusal = why_refused(away, plan, peer, own.total, 0.5 * own.host)
        assert refusal is not None
        assert "of the machine's memory, beside the GPU's," in refusal
        assert "the machine's" not in str(why_refused(away, plan, peer, 0.5 * own.total, own.host))
    found = survey(away)
    assert found.smallest_apart < found.smallest_stage == survey(whole).smallest_stage == survey(whole).smallest_apart


def test_what_every_check_needs_is_worked_out_once_and_ahead_of_any_plan() -> None:
    """Else the peers of a first plan lay the model out while all wait for it."""
    one = job({"vocab_size": 131})
    prepare(one)
    made = model_sizes._activation_bytes.cache_info().misses, model_sizes._model_sizes.cache_info().misses
    assert why_refused(one, Plan(version=7, stages=((0, 3), (3, 4)), routes=ROUTES), "x", GIB) is None
    assert made == (model_sizes._activation_bytes.cache_info().misses, model_sizes._model_sizes.cache_info().misses)
    prepare(job({"model_type": "none"}))  # it is the check that says so


def test_the_end_of_a_vocabulary_of_a_billion_is_refused_and_the_middle_is_not() -> None:
    """Whoever asked the first one for it would take 130 GB."""
    plan = Plan(version=1, stages=((0, 1), (1, 3), (3, 4)), routes=(("a", "m", "x"),) * 4)
    hostile = job({"vocab_size": 10**9})
    assert why_refused(hostile, plan, "m", GIB) is None
    for end in ("a", "x"):
        assert why_refused(hostile, plan, end, 100 * GIB) is not None


@pytest.mark.parametrize(
    "plan",
    [
        Plan(version=1, stages=((0, 3), (3, 4)), routes=ROUTES * 2),
        Plan(version=1, stages=((0, 3), (3, 5)), routes=ROUTES),
        Plan(version=1, stages=((0, 1), (1, 3)), routes=ROUTES),
    ],
)
def test_a_plan_of_another_job_is_refused(plan: Plan) -> None:
    refusal = why_refused(job(), plan, "x", GIB)
    assert refusal is not None
    assert "not begun" in refusal


class Captured:
    """A confined process in the hands of whoever made the job: it answers what that one wants."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def run(self, data: bytes, *, memory: int, seconds: float) -> bytes:
        return self._answer


async def told(answer: bytes) -> JobSurvey:
    return await confined_survey(Captured(answer), job())  # type: ignore[arg-type]


async def test_an_answer_of_the_confined_process_is_read_as_a_strangers() -> None:
    assert await told(b'{"smallest_stage": 5, "measuring": 6}') == JobSurvey(5, 6)
    for answer in (
        b"", b"no JSON", b"\xaf", b"[]", b"7", b'"fault"', b"[" * 100_000, b'{"measuring": 1, "else": 2}',
        b'{"smallest_stage": -1, "measuring": 1}', b'{"smallest_stage": "x", "measuring": 1}', b'{"fault": 5}',
    ):  # fmt: skip
        with pytest.raises(UserError, match="gives no answer"):
            await told(answer)
    with pytest.raises(UserError) as caught:
        await told(b'{"fault": "\\u001b[2J"}')
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"training.micro_batch": 4}, "4 micro-batches, the job of 4 and 1"),
        ({"training.global_batch": 1 << 21, "training.micro_batch": 1 << 19}, "more than the 1048576 sequences"),
        ({"training.global_batch": 1200, "training.micro_batch": 300}, "the text has 4096 tokens"),
        ({"training.sequence_length": 1 << 20}, "sequence_length cannot change"),
        ({"training.micro_batch": "x"}, "training.micro_batch"),
        ({"training.global_batch": 200, "training.micro_batch": 50}, "asks for"),
    ],
)
def test_a_plan_whose_amendments_do_not_fit_or_ask_for_too_much_is_refused_in_a_line(
    values: dict[str, Any], words: str
) -> None:
    amendments = [{"number": 1, "from_step": 5, "values": values}]
    plan = Plan.model_validate({"stages": [[0, 4]], "routes": [["a"]] * 4, "amendments": amendments})
    begun = plan.model_copy(update={"resume": Resume(mark=Mark(step=4, plan=1))})
    offered = 2 * stage_demand(job().config, job().training, plan, "a")
    refusal = str(why_refused(job(), begun, "a", offered))
    assert words in refusal
    assert "\n" not in refusal


def test_a_plan_that_ends_before_an_amendment_asks_for_what_its_own_steps_need() -> None:
    amendments = [{"number": 1, "from_step": 5, "values": {"training.global_batch": 200, "training.micro_batch": 50}}]
    plan = Plan.model_validate({"stages": [[0, 4]], "routes": [["a"]] * 4, "amendments": amendments})
    assert why_refused(job(), plan, "a", stage_demand(job().config, job().training, plan, "a")) is None
