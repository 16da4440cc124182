"""The short form of the fuzzing benchmark, and whether that notices what it is there for."""

import json
import random
from collections.abc import Iterator

import pytest
from benchmarks.fuzzing.mutations import LARGEST, Mutator
from benchmarks.fuzzing.swarm_sides import Sides
from benchmarks.fuzzing.targets import all_targets
from benchmarks.fuzzing.trial import GROWTH_LIMIT, Target, measured, resident, tried

from dtfm_protocol.errors import Refused

WARM_INPUTS, INPUTS = 40, 160
"""Inputs of each parser: few enough for a test, and enough for what is wrong often."""
DOCUMENT = b'{"a": [1, 2, {"b": "text"}], "c": null}'


@pytest.fixture
def sides() -> Iterator[Sides]:
    made = Sides()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_nothing_but_the_stated_refusals_comes_out_of_any_parser_and_nothing_stays(sides: Sides) -> None:
    targets, faults = list(all_targets(sides)), list[str]()
    assert len({target.name for target in targets}) == len(targets)
    for target in targets:
        tried(target, WARM_INPUTS // target.cost, random.Random(0))
    before = resident()
    for target in targets:
        outcome = tried(target, INPUTS // target.cost, random.Random(1))
        faults += [f"{target.name}: {fault.what} for {fault.data[:500]!r}" for fault in outcome.faults.values()]
    assert faults == []
    assert resident() - before <= GROWTH_LIMIT


def test_a_parser_that_fails_in_another_way_is_noticed_and_named() -> None:
    def careless(data: bytes) -> object:
        try:
            values = json.loads(data)
        except ValueError:
            raise Refused("no JSON") from None
        return values["a"][2]["b"]

    outcome = tried(Target("careless", careless, (DOCUMENT,)), 500, random.Random(0))
    assert {"TypeError", "KeyError", "IndexError"} <= {
        fault.what.partition(" ")[0] for fault in outcome.faults.values()
    }
    assert not outcome.is_good
    for fault in outcome.faults.values():
        with pytest.raises((TypeError, KeyError, IndexError, RecursionError)):
            careless(fault.data)


def test_a_parser_that_keeps_what_it_reads_is_noticed() -> None:
    kept = list[bytes]()
    outcome = measured(Target("keeps", lambda data: kept.append(bytes(100_000)), (DOCUMENT,)), 1000, random.Random(0))
    assert outcome.growth > GROWTH_LIMIT
    assert not outcome.is_good


def test_a_parser_that_refuses_what_is_valid_shows_nothing() -> None:
    def refuses(data: bytes) -> object:
        raise Refused("whatever it is")

    with pytest.raises(AssertionError, match="does not take a valid input"):
        tried(Target("refuses", refuses, (DOCUMENT,)), 10, random.Random(0))


def test_inputs_are_bounded_and_of_one_seed_always_the_same() -> None:
    seeds = (DOCUMENT, bytes(range(256)), b"")
    first, again = (Mutator(seeds, random.Random(5)) for _ in range(2))
    inputs = [first.next() for _ in range(3000)]
    assert inputs == [again.next() for _ in range(3000)]
    assert max(map(len, inputs)) <= LARGEST
    assert len(set(inputs)) > 2000
