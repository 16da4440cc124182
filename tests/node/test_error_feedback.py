"""Error feedback: what lossy coding leaves out of one gradient goes into the next, and nothing is lost over time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.allreduce import Feedback
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.wire.codecs import BLOCK, decode, encode


def drawn(steps: int, elements: int, seed: int) -> torch.Tensor:
    """Gradients [steps, elements] with magnitudes from 1e-6 to 1, and a bias that stays."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = 10.0 ** (-6 * torch.rand(elements, generator=generator))
    bias = torch.randn(elements, generator=generator)
    return (torch.randn(steps, elements, generator=generator) + bias) * magnitude


def levels(values: torch.Tensor) -> torch.Tensor:
    """The int8 level at each place: a 127th of the largest magnitude of its block."""
    padded = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    return (padded.abs().amax(1, keepdim=True) / 127).expand_as(padded).reshape(-1)[: len(values)]


@given(elements=st.integers(1, 3 * BLOCK + 2), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_what_was_decoded_so_far_stays_half_a_level_from_the_true_sum(elements: int, seed: int) -> None:
    feedback, true, found = Feedback(), torch.zeros(elements).double(), torch.zeros(elements).double()
    for gradient in drawn(15, elements, seed):
        owed = (true - found).float() + gradient
        found += decode(feedback.encode(0, gradient, (0, elements), "int8"), "int8", (elements,))
        true += gradient
        assert ((found - true).abs() <= levels(owed).double() * 0.501 + 1e-9).all()


def test_without_it_the_sum_drifts() -> None:
    gradient = torch.full((BLOCK,), 0.003)
    gradient[0] = 1.0
    feedback, kept, plain = Feedback(), torch.zeros(BLOCK), torch.zeros(BLOCK)
    for _ in range(100):
        kept += decode(feedback.encode(0, gradient, (0, BLOCK), "int8"), "int8", (BLOCK,))
        plain += decode(encode(gradient, "int8"), "int8", (BLOCK,))
    assert plain[1] == 0.0
    assert kept[1] == pytest.approx(0.3, abs=0.5 / 127 + 1e-5)


def test_parts_and_buckets_have_accounts_of_their_own() -> None:
    gradients = drawn(6, 50, seed=1)
    mixed, alone = Feedback(), {key: Feedback() for key in [(0, 0, 20), (0, 20, 50), (1, 0, 50)]}
    for gradient in gradients:
        for (group, low, high), own in alone.items():
            wanted = own.encode(group, gradient, (low, high), "int8")
            assert torch.equal(mixed.encode(group, gradient, (low, high), "int8"), wanted)


@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16"])
def test_other_codecs_have_none(codec: CodecName) -> None:
    """They are off by a small part of each value, not of the largest one."""
    feedback = Feedback()
    for gradient in drawn(4, 30, seed=2):
        assert torch.equal(feedback.encode(0, gradient, (3, 17), codec), encode(gradient[3:17], codec))


def test_the_gradient_itself_is_left_as_it_is() -> None:
    (gradient,) = drawn(1, 40, seed=3)
    before = gradient.clone()
    Feedback().encode(0, gradient, (0, 40), "int8")
    assert torch.equal(gradient, before)
