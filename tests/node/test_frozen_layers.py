"""Frozen layers: what is trained beside them is what a plain loop trains, over any plan, and they never change."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from dtfm_node.commands.solo import Solo
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.base_transfers import BASE, serve_base
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.base_forms import SCALE, base_forms
from dtfm_protocol.model.base_values import BaseValues
from dtfm_protocol.model.frozen_parameters import frozen_names, trained_names
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.model.whole_model import build_skeleton
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Resume, Source
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from tests.harness.begun_base import begun_with, other_weights
from tests.node.engine_reference import alone, assert_same_training, result_of
from tests.node.engine_swarm import CPU, LAYERS, Result, State, Swarm, home, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow
OWNER = "owner"
FIRST_HALF: dict[str, Any] = {"method": "frozen-layers", "layers": (0, 2)}
MIDDLE: dict[str, Any] = {"method": "frozen-layers", "layers": (1, 3)}
ALL_LAYERS: dict[str, Any] = {"method": "frozen-layers", "layers": (0, LAYERS)}
LORA: dict[str, Any] = {
    "method": "lora",
    "lora": {"r": 4, "lora_alpha": 8.0, "target_modules": ("q_proj", "mlp.down_proj")},
    "learning_rate": 0.02,
}


def frozen_model(job: ResolvedJob, frozen: Iterator[str]) -> Any:
    """The model as `transformers` builds it, with the job's initial weights, of which some take no gradient."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**job.config)).train()
    kept = set(frozen)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(initial_value(job.config, job.training.seed, name, parameter.shape))
        parameter.requires_grad_(name not in kept)
    return model


def adapted_model(job: ResolvedJob) -> Any:
    """The same as `peft` puts its adapters into it, with the job's initial ones."""
    lora = job.training.lora
    config = LoraConfig(r=lora.r, lora_alpha=lora.lora_alpha, target_modules=list(lora.target_modules))
    model = get_peft_model(frozen_model(job, iter(())), config)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = name.replace(".default.", ".")
            parameter.data.copy_(initial_value(job.config, job.training.seed, name, parameter.shape))
    return model


def plain_losses(home: Path, job: ResolvedJob, model: Any) -> Iterator[float]:
    """The loss of each step of the loop that anybody would write, with torch's own AdamW."""
    training = job.training
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [one for one in trained if one.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=training.betas, eps=training.eps)
    batches, read = Batches(job.corpus, training, job.evaluation), TokenReader(job.corpus, ShardFolder(home / "tokens"))
    for step in range(1, training.steps + 1):
        optimizer.zero_grad()
        total = 0.0
        for index in range(training.micro_batches):
            window = torch.from_numpy(batches.micro_batch(step, index, read.read))
            logits = model(input_ids=window[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction="sum")
            (loss / training.tokens).backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(trained, training.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate_at(step)
        optimizer.step()
        yield total / training.tokens


def names_of(*, layers: range, embedding: bool) -> Iterator[str]:
    """Names of llama's parameters, written out by hand."""
    inner = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    inner += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")
    for layer in layers:
        for part in inner:
            yield f"model.layers.{layer}.{part}.weight"
    if embedding:
        yield "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("layers", "tied", "embedding"), [((0, 2), False, True), ((0, 2), True, False), ((1, 3), False, False)]
)
def test_the_loss_of_each_step_is_that_of_a_plain_loop_with_requires_grad_off(
    home: Path, layers: tuple[int, int], tied: bool, embedding: bool
) -> None:
    keys = {"method": "frozen-layers", "layers": layers, "steps": 20}
    job, found = job_of(home, tied=tied, **keys), [row.loss for row in alone(home, tied, **keys).rows]
    names = names_of(layers=range(*layers), embedding=embedding)
    assert found == pytest.approx(list(plain_losses(home, job, frozen_model(job, names))), rel=1e-5)
    assert found != [row.loss for row in alone(home, tied, steps=20).rows]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_loss_of_each_step_is_that_of_a_plain_loop_with_the_adapters_of_peft(home: Path, tied: bool) -> None:
    keys = LORA | {"steps": 20}
    found, job = [row.loss for row in alone(home, tied, **keys).rows], job_of(home, tied=tied, **keys)
    assert found == pytest.approx(list(plain_losses(home, job, adapted_model(job))), rel=1e-5)
    assert found[-1] < found[0] - 0.01


@pytest.mark.parametrize(
    ("schedule", "tied"), [("1f1b", False), ("zero-bubble", True)], ids=["1f1b, untied", "zero-bubble, tied"]
)
@pytest.mark.parametrize("keys", [FIRST_HALF, MIDDLE, ALL_LAYERS, LORA], ids=["first half", "middle", "all", "lora"])
@pytest.mark.parametrize("name", ["2x2", "uneven layers", "1x4", "crossed routes"])
async def test_any_plan_trains_as_one_process_does(
    home: Path, name: str, keys: dict[str, Any], tied: bool, schedule: str
) -> None:
    """Among them stages of which nothing is trained."""
    job = job_of(home, tied=tied, **keys)
    swarm = Swarm(home, job, plan_of(name, schedule=schedule))
    found = await swarm.run()
    assert_same_training(found, alone(home, tied, **keys), 1e-5)
    for peer in swarm.peers.values():
        assert peer.stage is not None
        assert_frozen(job, peer.stage)
    kept = frozen_names(job.config, job.training)
    assert not any(key.partition("/")[2] in kept for key in found.state)


def assert_frozen(job: ResolvedJob, stage: TrainingStage) -> None:
    for name, parameter in stage.frozen.items():
        assert parameter.grad is None
        assert torch.equal(parameter, initial_value(job.config, job.training.seed, name, parameter.shape))


@pytest.mark.parametrize("keys", [MIDDLE, LORA], ids=["middle", "lora"])
async def test_recomputing_a_stage_does_not_change_what_is_computed(home: Path, keys: dict[str, Any]) -> None:
    found = await Swarm(home, job_of(home, **keys), plan_of("crossed routes", recompute=[0, 1])).run()
    assert_same_training(found, alone(home, False, **keys), 1e-5)


def pretrained(home: Path, folder: Path, **keys: Any) -> tuple[ResolvedJob, PieceFolder]:
    """A job that begins with weights of its own, and the coordinator's pieces of them."""
    job, pieces = job_of(home, **keys), PieceFolder(folder / "base")
    return begun_with(job, other_weights(job), pieces), pieces


BF16 = LORA | {"lora": LORA["lora"] | {"base": "bf16"}}
INT8 = LORA | {"lora": LORA["lora"] | {"base": "int8"}}
BEGUN = pytest.mark.parametrize(
    "keys", [{}, FIRST_HALF, LORA, BF16, INT8], ids=["full", "first half", "lora", "lora on bf16", "lora on int8"]
)


@BEGUN
async def test_pretrained_weights_are_fetched_once_from_whoever_has_them_and_kept(
    home: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    """At the start from the coordinator; in the middle, by a node that comes then, from the others that have them."""
    job, pieces = pretrained(home, tmp_path, **keys)
    network = MemoryNetwork()
    owner = MemoryDataPlane(network, OWNER)
    await owner.serve(BASE, lambda stream: serve_base(stream, pieces))
    (tmp_path / "tokens").symlink_to(home / "tokens")
    former = Swarm(tmp_path, job, plan_of("2x2", author=OWNER), network)
    start = await former.run(last=3)
    owner.vanish()
    held = tuple(Source(peer=me, layers=(former.plan.stages[former.plan.stage_of(me) or 0],)) for me in former.peers)
    second = plan_of("1x4", version=2, author=OWNER, resume=Resume(mark=Mark(step=3, plan=1), sources=held))
    swarm = Swarm(tmp_path, job, second, network, former)
    rest = await swarm.run()
    solo = Solo(job, tmp_path, CPU)
    assert solo.resume() == 0
    assert_same_training(Result(start.rows + rest.rows, rest.state), result_of(solo, tmp_path), 1e-5)
    newcomer, values = swarm.peers["m"].stage, BaseValues(job, pieces)
    assert newcomer is not None
    state = sum(value.nbytes for value in swarm.peers["m"].states[3].values())
    needed = {values.piece(name) for name in newcomer.frozen} - {None}
    assert bool(needed) == bool(keys)
    assert swarm.peers["m"].fetched.bytes == state + sum(piece.bytes for piece in needed if piece is not None)
    assert OWNER not in swarm.peers["m"].fetched.sources
    for peer in swarm.peers.values():
        assert peer.stage is not None
        for name, parameter in peer.stage.frozen.items():
            if not name.endswith(SCALE):
                kept = values.value(name, tuple(parameter.shape))
                assert torch.equal(parameter, kept.value)
                assert kept.scale is None or torch.equal(peer.stage.frozen[name + SCALE], kept.scale)
    fewer = [piece.bytes for piece in job.base]
    assert {me: peer.fetched.bytes for me, peer in former.peers.items()} == {
        me: sum(fewer[:3]) if peer.stage is not None and peer.stage.is_first else sum(fewer[3:])
        for me, peer in former.peers.items()
    }


@pytest.mark.parametrize(("keys", "dtypes"), [(BF16, {"BF16", "F32"}), (INT8, {"I8", "BF16", "F32"})])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
async def test_a_base_in_less_than_fp32_is_computed_with_as_it_is_decoded(
    home: Path, tmp_path: Path, keys: dict[str, Any], dtypes: set[str], precision: str
) -> None:
    """The swarm keeps it as it is, one process decodes it first; the weights are drawn."""
    job = job_of(home, tied=True, **keys, precision=precision)
    swarm = Swarm(tmp_path, job, plan_of("uneven layers", schedule="zero-bubble"))
    (tmp_path / "tokens").symlink_to(home / "tokens")
    found = await swarm.run()
    assert_same_training(found, result_of(Solo(job, tmp_path, CPU), tmp_path), 1e-5 if precision == "fp32" else 2e-2)
    assert {form.dtype for form in base_forms(job.config, job.training).values()} == dtypes
    stages = [peer.stage for peer in swarm.peers.values() if peer.stage is not None]
    assert {torch_name(value) for stage in stages for value in stage.frozen.values()} == dtypes


def torch_name(value: torch.Tensor) -> str:
    return {torch.int8: "I8", torch.bfloat16: "BF16", torch.float32: "F32"}[value.dtype]


@pytest.mark.parametrize("keys", [BF16, INT8], ids=["bf16", "int8"])
def test_a_base_in_less_than_fp32_is_that_of_a_plain_loop_with_the_decoded_weights(
    home: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    """Of `transformers` and `peft`, which know nothing of the form."""
    keys = keys | {"steps": 20}
    job = job_of(home, **keys)
    found, model = [row.loss for row in alone(home, False, **keys).rows], adapted_model(job)
    values = BaseValues(job, PieceFolder(tmp_path))
    changed = 0
    for name, parameter in model.get_base_model().named_parameters():
        if not parameter.requires_grad:
            decoded = values.value(name.replace("base_layer.", ""), tuple(parameter.shape)).decoded()
            changed += not torch.equal(decoded, parameter)
            parameter.data.copy_(decoded)
    assert changed > LAYERS * 7
    assert found == pytest.approx(list(plain_losses(home, job, model)), rel=1e-5)


@pytest.mark.parametrize("keys", [FIRST_HALF, LORA], ids=["first half", "lora"])
def test_one_process_that_comes_back_goes_on_from_what_it_has_kept(
    home: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    job, _ = pretrained(home, tmp_path, **keys)
    store = CheckpointStore(tmp_path / "checkpoints")
    (tmp_path / "tokens").symlink_to(home / "tokens")
    whole = Solo(job, tmp_path, CPU)
    assert whole.resume() == 0
    wanted: State = {}
    for step in range(1, 7):
        row = whole.step(step)
        if step in {2, 3, 4}:
            whole.keep(row)
        wanted[str(step)] = torch.tensor(row.loss)
    again = Solo(job, tmp_path, CPU)
    assert again.resume() == 4
    assert math.isclose(again.step(5).loss, float(wanted["5"]), rel_tol=1e-6)
    kept = {key.partition("/")[2] for key in store.whole(4).tensors}
    names = [name for name, _ in build_skeleton(job.config).named_parameters()]
    assert kept == trained_names(job.config, job.training, names)
