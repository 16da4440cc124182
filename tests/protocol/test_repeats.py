"""How often documents are in the corpus: a source's weight, exactly, whatever order they come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.data.repeats import Repeats


@given(weight=st.integers(1, 40).map(lambda n: n / 10), count=st.integers(0, 200), seed=st.integers(0, 9))
def test_a_share_is_exact_to_less_than_one_document(weight: float, count: int, seed: int) -> None:
    repeats = Repeats(weight, str(seed))
    times = [repeats.of(number) for number in range(count)]
    assert abs(sum(times) - weight * count) < 1 + 1e-9
    assert {int(weight), repeats.rounds} >= set(times)


def test_a_weight_of_one_takes_each_document_once() -> None:
    assert {Repeats(1.0, "a").of(number) for number in range(100)} == {1}
    assert Repeats(1.0, "a").rounds == 1


@pytest.mark.parametrize("weight", [0.5, 0.25, 0.75, 1.5])
def test_documents_that_alternate_in_kind_are_drawn_of_every_kind(weight: float) -> None:
    repeats = Repeats(weight, "a")
    times = [repeats.of(number) for number in range(4000)]
    for kind in range(4):
        assert sum(times[kind::4]) / 1000 == pytest.approx(weight, abs=0.06)


def test_the_draw_is_the_keys() -> None:
    draws = [[Repeats(0.5, key).of(number) for number in range(64)] for key in ("a", "a", "b")]
    assert draws[0] == draws[1] != draws[2]
