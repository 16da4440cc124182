"""Max-min fair rates, against textbook cases and progressive filling from scratch."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.simulator.fair_share import FairShare


def filled(capacities: list[float], transfers: dict[int, tuple[float, tuple[int, ...]]]) -> dict[int, float]:
    """All rates grow together until a cap or a full resource stops some, then the others go on."""
    rates = dict.fromkeys(transfers, 0.0)
    growing = set(transfers)
    while growing:
        room = [transfers[t][0] - rates[t] for t in growing]
        for resource, capacity in enumerate(capacities):
            crossing = [t for t in transfers if resource in transfers[t][1]]
            if growing & set(crossing):
                room.append((capacity - sum(rates[t] for t in crossing)) / len(growing & set(crossing)))
        for transfer in growing:
            rates[transfer] += min(room)
        for transfer in set(growing):
            cap, resources = transfers[transfer]
            full = any(
                sum(rates[t] for t in transfers if r in transfers[t][1]) >= capacities[r] * (1 - 1e-12)
                for r in resources
            )
            if full or rates[transfer] >= cap * (1 - 1e-12):
                growing.discard(transfer)
    return rates


def test_transfers_on_one_resource_share_it_evenly() -> None:
    shares = FairShare([6.0])
    for transfer in range(3):
        shares.add(transfer, math.inf, (0,))
    shares.settle()
    assert shares.rate == {0: 2.0, 1: 2.0, 2: 2.0}
    shares.remove(1)
    assert shares.settle() == {0: 2.0, 2: 2.0}
    assert shares.rate == {0: 3.0, 2: 3.0}


def test_what_a_capped_transfer_leaves_goes_to_the_others() -> None:
    shares = FairShare([6.0])
    shares.add(0, 1.0, (0,))
    shares.add(1, math.inf, (0,))
    shares.settle()
    assert shares.rate == {0: 1.0, 1: 5.0}


def test_unequal_bottlenecks_give_each_transfer_the_share_of_its_own() -> None:
    # Uplink 0 of 10 carries a and b, uplink 1 of 10 carries c; downlink 2 of 4 takes b and c.
    shares = FairShare([10.0, 10.0, 4.0])
    shares.add(0, math.inf, (0,))
    shares.add(1, math.inf, (0, 2))
    shares.add(2, math.inf, (1, 2))
    shares.settle()
    assert shares.rate == {0: 8.0, 1: 2.0, 2: 2.0}
    # Without c, b takes its fair half of neither: 4 is all of the downlink, and a takes the rest of the uplink.
    shares.remove(2)
    shares.settle()
    assert shares.rate == {0: 6.0, 1: 4.0}


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_rates_kept_up_to_date_are_those_filled_from_scratch(data: st.DataObject) -> None:
    amounts = st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0]) | st.floats(0.1, 10.0)
    capacities = data.draw(st.lists(amounts, min_size=2, max_size=6))
    resources = st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=2, unique=True).map(tuple)
    shares = FairShare(capacities)
    present: dict[int, tuple[float, tuple[int, ...]]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        if present and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(present)))
            shares.remove(gone)
            del present[gone]
        else:
            present[number] = data.draw(amounts | st.just(math.inf)), data.draw(resources)
            shares.add(number, *present[number])
        if data.draw(st.booleans()):
            shares.settle()
    shares.settle()
    assert shares.rate == pytest.approx(filled(capacities, present), rel=1e-7)
