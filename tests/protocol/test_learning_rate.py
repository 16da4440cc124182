"""The learning rate of a step: what each schedule promises, what `transformers` has for it, and mistakes in keys."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import optimization

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.job.learning_rate import _cosine
from dtfm_protocol.schema import needs_of

pytestmark = pytest.mark.unit
PEAK = 1e-3
WSD = "warmup-stable-decay"


def training(steps: int, warmup: int = 0, **keys: Any) -> Training:
    values = {"global_batch": 1, "micro_batch": 1, "sequence_length": 1, "learning_rate": PEAK}
    return Training.read({"steps": steps, "warmup_steps": warmup, **values, **keys}, "training")


def test_the_rate_rises_to_its_peak_and_falls_to_a_tenth() -> None:
    found = training(110, 10)
    assert found.learning_rate_at(1) == pytest.approx(1e-4)
    assert found.learning_rate_at(10) == pytest.approx(1e-3)
    assert found.learning_rate_at(60) == pytest.approx((1e-3 + 1e-4) / 2)  # half-way down a cosine
    assert found.learning_rate_at(110) == pytest.approx(1e-4)


@given(steps=st.integers(1, 10**6), data=st.data())
def test_the_rate_falls_as_the_c_librarys_cosine_does(steps: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, steps))
    wanted = 1e-3 * (0.55 + 0.45 * math.cos(math.pi * step / steps))
    assert training(steps).learning_rate_at(step) == pytest.approx(wanted, rel=1e-14)


def test_the_cosine_to_a_tenth_has_the_bits_that_it_always_had() -> None:
    """Nodes of another minor version compute them so, and replicas must agree."""
    found = training(1000, 30)
    for step in range(1, 1001):
        root = _cosine(min(1.0, (step - 30) / 970) * math.pi / 2)
        assert found.learning_rate_at(step) == (PEAK * step / 30 if step < 30 else PEAK * (0.1 + 0.9 * root * root))


@given(
    schedule=st.sampled_from(("cosine", "linear", "constant", WSD)),
    steps=st.integers(2, 300),
    floor=st.floats(0, 1),
    data=st.data(),
)
def test_the_rate_stays_between_its_floor_and_its_peak_and_has_one_top(
    schedule: str, steps: int, floor: float, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(0, steps - 1))
    decay = data.draw(st.integers(1, steps - warmup)) if schedule == WSD else 0
    found = training(steps, warmup, schedule=schedule, schedule_floor=floor, schedule_decay=decay)
    rates = [found.learning_rate_at(step) for step in range(1, 2 * steps)]
    assert all(0 <= rate <= PEAK * (1 + 1e-12) for rate in rates)
    top = max(warmup - 1, 0)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert all(later <= rate * (1 + 1e-12) for rate, later in zip(rates[top:], rates[top + 1 :], strict=False))
    assert rates[steps - 1 :] == [rates[steps - 1]] * steps
    assert rates[-1] == pytest.approx(PEAK if schedule == "constant" else PEAK * floor, rel=1e-12)
    assert rates[steps - max(decay, 1) - 1] == pytest.approx(PEAK) or schedule != WSD or warmup >= steps - decay


@pytest.mark.parametrize(
    ("keys", "name", "options"),
    [
        ({}, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ({"schedule_floor": 0.3}, "cosine_with_min_lr", {"min_lr_rate": 0.3}),
        ({"schedule": "linear", "schedule_floor": 0}, "linear", {}),
        ({"schedule": "constant"}, "constant_with_warmup", {}),
        (
            {"schedule": WSD, "schedule_decay": 40, "schedule_floor": 0},
            "warmup_stable_decay",
            {"num_decay_steps": 40, "decay_type": "linear"},
        ),
    ],
)
def test_the_rate_is_that_of_transformers_schedule(keys: dict[str, Any], name: str, options: dict[str, Any]) -> None:
    """Whose steps are counted from 0."""
    found = training(200, 20, **keys)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    theirs = optimization.get_scheduler(name, optimizer, 20, 200, scheduler_specific_kwargs=options)
    for step in range(1, 201):
        optimizer.step()
        theirs.step()
        assert found.learning_rate_at(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9, abs=1e-18)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"schedule": "exponential"}, "schedule: "),
        ({"schedule": WSD}, 'give the steps of the fall with "warmup-stable-decay"'),
        ({"schedule_decay": 10}, 'give the steps of the fall with "warmup-stable-decay"'),
        ({"schedule": WSD, "schedule_decay": 91}, "91 is more than the 90 steps after warmup_steps"),
        ({"schedule_floor": 1.5}, "schedule_floor: "),
        ({"warmup_steps": 101}, "warmup_steps: 101 is more than steps (100)"),
    ],
)
def test_a_mistake_names_its_key(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        training(100, **{"warmup_steps": 10, **keys})
    assert said in str(caught.value)


def test_who_does_not_know_another_schedule_is_told_so() -> None:
    assert needs_of(training(100)) == ()
    keys = {"schedule": WSD, "schedule_decay": 10, "schedule_floor": 0.0}
    assert needs_of(training(100, **keys)) == ("schedule", "schedule_floor", "schedule_decay")
