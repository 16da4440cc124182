"""A peer's slice of the model: when its gradients are final, and what it takes from and gives to its neighbours."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dtfm_node.engine.training_stage import Diverged, TrainingStage
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Model, Training
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Action, actions_of
from dtfm_protocol.wire.codecs import decode, encode, payload_bytes
from tests.node.finals import final

CPU = torch.device("cpu")
VOCAB, LAYERS, BATCH, SEQUENCE, HIDDEN = 61, 5, 2, 8, 16
FIELDS: dict[str, Any] = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
ARCHITECTURES = {"llama": FIELDS | {"num_key_value_heads": 1, "intermediate_size": 24}, "gpt2": FIELDS}
STAGES = {
    "only": (((0, LAYERS),), "a"),
    "first": (((0, 3), (3, LAYERS)), "a"),
    "middle": (((0, 1), (1, 4), (4, LAYERS)), "b"),
    "last": (((0, 2), (2, LAYERS)), "b"),
}
TRAINING = Training(steps=9, global_batch=8, micro_batch=BATCH, sequence_length=SEQUENCE, learning_rate=1e-3)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plan_of(role: str, **fields: Any) -> Plan:
    stages, _ = STAGES[role]
    return Plan.model_validate({"version": 1, "stages": stages, "routes": [tuple("abc"[: len(stages)])] * 4} | fields)


def state_of(
    role: str, *, architecture: str = "llama", tied: bool = False, training: Training = TRAINING, **plan: Any
) -> TrainingStage:
    model = {"architecture": architecture, "tie_word_embeddings": tied} | ARCHITECTURES[architecture]
    config = resolve_config(Model.model_validate(model), VOCAB, SEQUENCE)
    state = TrainingStage(config, plan_of(role, **plan), STAGES[role][1], training, CPU)
    state.initialise()
    return state


class Neighbours:
    """Stands for the peers before and after a stage: draws what they would send."""

    def __init__(self, state: TrainingStage) -> None:
        self._state = state
        self._generator = torch.Generator().manual_seed(3)

    def act(self, action: Action) -> torch.Tensor | None:
        state, index = self._state, action.micro_batch
        if action.kind == "weight":
            state.weight(index)
            return None
        if action.kind == "backward":
            return state.backward(index, None if state.is_last else self.hidden())
        tokens = torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1), generator=self._generator)
        inputs = tokens[:, :-1] if state.is_first else self.hidden()
        return state.forward(index, inputs, tokens[:, 1:] if state.is_last else None)

    def hidden(self) -> torch.Tensor:
        """Coded values of the shape that travels between stages."""
        return encode(torch.randn(BATCH, SEQUENCE, HIDDEN, generator=self._generator), "fp32")


def groups_of(state: TrainingStage) -> list[dict[str, torch.Tensor]]:
    """The gradients, by the groups in which a backward is through with them."""
    found = []
    for names in state.stage.backward_order():
        grads = {name: state.parameters[name].grad for name in names}
        found.append({name: grad for name, grad in grads.items() if grad is not None})
        assert len(found[-1]) == len(names)
    return found


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("role", STAGES)
@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("llama", True), ("gpt2", True)])
def test_every_group_is_called_final_when_its_gradients_are_and_not_later(
    architecture: str, tied: bool, role: str, schedule: str, recompute: bool
) -> None:
    """Not earlier: it does not change again. Not later: the next group's are not all there, or it is called, too."""
    plan: dict[str, Any] = {"schedule": schedule, "recompute": list(range(len(STAGES[role][0]))) if recompute else []}
    state = state_of(role, architecture=architecture, tied=tied, **plan)
    groups = groups_of(state)
    called: list[int] = []
    seen: list[list[dict[str, torch.Tensor]]] = []

    def finished(group: int) -> None:
        called.append(group)
        seen.append([{name: grad.clone() for name, grad in one.items()} for one in groups])

    for _ in range(2):  # in the second step as in the first
        called.clear()
        seen.clear()
        state.begin_step(finished)
        neighbours = Neighbours(state)
        actions = actions_of(plan_of(role, **plan), STAGES[role][1])
        for action in actions:
            neighbours.act(action)
        assert all(bool(grad.any()) for one in groups for name, grad in one.items() if not name.endswith("bias"))
        assert called[-1] == state.groups.last == len(groups) - 1
        assert sorted(called) == called
        for place, (group, then) in enumerate(zip(called, seen, strict=True)):
            assert all(same(then[one], groups[one]) for one in range(group + 1)), f"group {group} changed again"
            later = next((one for one in range(group + 1, len(groups)) if groups[one]), None)
            if later is not None and same(then[later], groups[later]):
                assert all(map(same, then, seen[place + 1])), f"group {later} was called late"
        assert set(called) >= set(range(1, len(groups) - (1 if state.is_first else 2)))  # each layer by itself


def test_gradients_are_views_into_the_buckets() -> None:
    """Reducing needs no copy."""
    for role in STAGES:
        state = state_of(role, tied=True)
        state.begin_step(lambda group: None)
        for gradient in state.gradients.of_bucket.values():
            gradient.fill_(1.0)
        assert all(float(grad.min()) == 1.0 for group in groups_of(state) for grad in group.values())
        assert sum(gradient.numel() for gradient in state.gradients.of_bucket.values()) == sum(
            parameter.numel() for parameter in state.parameters.values()
        )


def test_first_and_last_stage_say_what_they_share() -> None:
    assert (
        state_of("first", tied=True).gradients.shared
        == state_of("last", tied=True).gradients.shared
        == {"model.embed_tokens.weight"}
    )
    assert state_of("middle", tied=True).gradients.shared == state_of("only", tied=True).gradients.shared == frozenset()
    assert state_of("first").gradients.shared == state_of("last").gradients.shared == frozenset()


def test_a_step_begins_without_what_an_interrupted_one_left() -> None:
    for schedule in ("1f1b", "zero-bubble"):
        state = state_of("last", schedule=schedule)
        actions = actions_of(plan_of("last", schedule=schedule), "b")
        results = []
        for length in (len(actions) // 2, len(actions)):
            state.begin_step(lambda group: None)
            assert not state.losses
            assert not any(bool(gradient.any()) for gradient in state.gradients.of_bucket.values())
            neighbours = Neighbours(state)
            for action in actions[:length]:
                neighbours.act(action)
            results.append(dict(state.losses))
        fresh = state_of("last", schedule=schedule)
        fresh.begin_step(lambda group: None)
        neighbours = Neighbours(fresh)
        for action in actions:
            neighbours.act(action)
        assert fresh.losses == results[-1]
        for found, wanted in zip(groups_of(state), groups_of(fresh), strict=True):
            assert same(found, wanted)


FORWARD, BACKWARD = Action("forward", 0), Action("backward", 0)


@pytest.mark.parametrize("role", ["middle", "last"])
def test_an_input_that_does_not_decode_is_refused(role: str) -> None:
    state = state_of(role)
    state.begin_step(lambda group: None)
    good = Neighbours(state).hidden()
    bad = decode(good.clone(), "fp32", (BATCH, SEQUENCE, HIDDEN))
    bad[1, 2, 3] = float("nan")
    for data in (good[:-4], torch.cat([good, good[:4]]), good[:0], encode(bad, "fp32")):
        with pytest.raises(Refused):
            state.forward(0, data, torch.zeros(BATCH, SEQUENCE, dtype=torch.int64))
        with pytest.raises(Refused):
            state.evaluate(data, torch.zeros(BATCH, SEQUENCE, dtype=torch.int64), BATCH)
    assert not state.losses


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("role", ["first", "middle"])
def test_a_gradient_that_does_not_decode_is_refused_before_anything_is_added(role: str, schedule: str) -> None:
    state = state_of(role, schedule=schedule)
    state.begin_step(lambda group: None)
    neighbours = Neighbours(state)
    neighbours.act(FORWARD)
    bad = torch.ones(BATCH, SEQUENCE, HIDDEN)
    bad[0, 0, 0] = float("inf")
    for data in (encode(bad, "fp32"), neighbours.hidden()[:-1]):
        with pytest.raises(Refused):
            state.backward(0, data)
    assert not any(bool(gradient.any()) for gradient in state.gradients.of_bucket.values())
    neighbours.act(BACKWARD)
    assert schedule == "zero-bubble" or any(bool(gradient.any()) for gradient in state.gradients.of_bucket.values())


@pytest.mark.parametrize("role", ["first", "middle"])
def test_an_activation_that_is_not_finite_is_named_here_and_not_sent(role: str) -> None:
    """Arriving, it would count as this peer's fault."""
    state = state_of(role)
    state.begin_step(lambda group: None)
    with torch.no_grad():
        state.stage.layers()[-1].get_parameter("mlp.down_proj.weight").fill_(float("inf"))
    with pytest.raises(Diverged, match=f"an activation of stage {state.index + 1} is not finite"):
        Neighbours(state).act(FORWARD)
    inputs = torch.zeros(BATCH, SEQUENCE, dtype=torch.int64) if state.is_first else Neighbours(state).hidden()
    with pytest.raises(Diverged):
        state.evaluate(inputs, None, BATCH)


def test_a_gradient_that_is_not_finite_is_named_here_and_not_sent() -> None:
    state = state_of("middle")
    state.begin_step(lambda group: None)
    with torch.no_grad():
        state.stage.layers()[-1].get_parameter("mlp.down_proj.weight").fill_(10.0)
    Neighbours(state).act(FORWARD)
    with pytest.raises(Diverged, match="the gradient before stage 2 is not finite"):
        state.backward(0, encode(torch.full((BATCH, SEQUENCE, HIDDEN), 3e38), "fp32"))


@pytest.mark.parametrize("activations", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("gradients", ["fp32", "bf16", "fp16", "int8"])
def test_each_direction_has_its_own_codec(activations: Any, gradients: Any) -> None:
    state = state_of("middle", wire={"activations": activations, "gradients": gradients})
    state.begin_step(lambda group: None)
    values = torch.randn(BATCH, SEQUENCE, HIDDEN, generator=torch.Generator().manual_seed(1))
    forth = state.forward(0, encode(values, activations), None)
    back = state.backward(0, encode(values, gradients))
    assert forth is not None
    assert back is not None
    assert len(forth) == payload_bytes(activations, tuple(values.shape))
    assert len(back) == payload_bytes(gradients, tuple(values.shape))
    decode(forth, activations, tuple(values.shape))
    decode(back, gradients, tuple(values.shape))


def test_each_boundary_has_its_own_codecs() -> None:
    before, after = {"activations": "fp16", "gradients": "int8"}, {"activations": "int8", "gradients": "bf16"}
    state = state_of("middle", boundaries=[before, after])
    state.begin_step(lambda group: None)
    values = torch.randn(BATCH, SEQUENCE, HIDDEN, generator=torch.Generator().manual_seed(1))
    forth = state.forward(0, encode(values, "fp16"), None)
    back = state.backward(0, encode(values, "bf16"))
    evaluated = state.evaluate(encode(values, "fp16"), None, BATCH)
    assert forth is not None
    assert back is not None
    assert isinstance(evaluated, torch.Tensor)
    assert len(forth) == len(evaluated) == payload_bytes("int8", tuple(values.shape))
    assert len(back) == payload_bytes("int8", tuple(values.shape))
    decode(forth, "int8", tuple(values.shape))
    decode(back, "int8", tuple(values.shape))


def test_an_update_clips_by_the_whole_models_norm_and_uses_the_new_weights_at_once() -> None:
    """Also where products run in bf16 and matrices are cast once a step."""
    training = TRAINING.model_copy(update={"precision": "bf16", "clip_norm": 1.0})
    state = state_of("only", training=training)
    state.begin_step(lambda group: None)
    neighbours = Neighbours(state)
    for micro_batch in range(4):
        neighbours.act(Action("forward", micro_batch))
        neighbours.act(Action("backward", micro_batch))
    before = {name: grad.clone() for group in groups_of(state) for name, grad in group.items()}
    state.prepare(Mark(step=1, plan=1))
    commit = final(Mark(step=1, plan=1), 100.0)
    state.apply(100.0, commit)
    assert (state.mark, state.prepared, state.commit) == (Mark(step=1, plan=1), None, commit)
    for name, grad in before.items():
        torch.testing.assert_close(state.optimizer.moments[f"exp_avg/{name}"], grad * (0.1 / 100.000001))
    loss = state.evaluate(*(torch.zeros(BATCH, SEQUENCE, dtype=torch.int64),) * 2, BATCH)
    fresh = state_of("only", training=training)
    with torch.no_grad():
        for name, parameter in fresh.parameters.items():
            parameter.copy_(state.parameters[name])
    assert loss == fresh.evaluate(*(torch.zeros(BATCH, SEQUENCE, dtype=torch.int64),) * 2, BATCH)
