"""What packets meet between hosts: delays, rates, shares, queues and losses, all by value; time is given."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_lab.emulation.emulated_links import LEAST_QUEUE_BYTES, Count, EmulatedLinks, LinkLimits

Pair = tuple[int, int]
INF = math.inf
PACKET = 1024
RATE = 1024.0 * 64
"""Packets take 1/64 s: sums of such times are exact."""


def links(
    hosts: int = 2,
    *,
    delay: float = 0.0,
    rate: float = INF,
    pairs: Mapping[Pair, float] | None = None,
    up: float | Sequence[float] = INF,
    down: float | Sequence[float] = INF,
    loss: float = 0.0,
    queue_seconds: float = 1e6,
) -> LinkLimits:
    """All links alike, but for the rates of `pairs`."""
    rates = np.full((hosts, hosts), rate)
    for pair, own in (pairs or {}).items():
        rates[pair] = own
    return LinkLimits(
        np.full((hosts, hosts), delay),
        rates,
        [up] * hosts if isinstance(up, float) else up,
        [down] * hosts if isinstance(down, float) else down,
        loss,
        queue_seconds,
    )


def rest(wires: EmulatedLinks[int]) -> list[tuple[int, int, float]]:
    """All that is still to come."""
    arrived = []
    while wires.next_time < INF:
        arrived += wires.due(wires.next_time)
    return arrived


def train(wires: EmulatedLinks[int], count: int, pair: Pair = (0, 1), now: float = 0.0) -> list[float]:
    """When the packets of a train, all sent at once, arrive."""
    for number in range(count):
        wires.send(*pair, number, PACKET, now)
    arrived = rest(wires)
    assert [(receiver, number) for receiver, number, _ in arrived] == [(pair[1], number) for number in range(count)]
    return [at for _, _, at in arrived]


def carried(
    wires: EmulatedLinks[Pair], sizes: Mapping[Pair, int], until: float, since: float = 0.0, window: int = 16
) -> dict[Pair, int]:
    """Bytes of pairs that always have packets of their size waiting."""
    before = {pair: wires.counts.get(pair, Count()).bytes for pair in sizes}
    for pair, size in sizes.items():
        for _ in range(window):
            wires.send(*pair, pair, size, since)
    while wires.next_time <= until:
        now = wires.next_time
        for _, pair, _ in wires.due(now):
            if pair in sizes:
                wires.send(*pair, pair, sizes[pair], now)
    return {pair: wires.counts[pair].bytes - before[pair] for pair in sizes}


@pytest.mark.parametrize(
    ("wiring", "seconds"),
    [
        (links(delay=0.25), 0.25),
        (links(delay=0.25, rate=RATE), 0.25 + 1 / 64),
        (links(delay=0.25, up=RATE), 0.25 + 1 / 64),
        (links(delay=0.25, rate=RATE / 2, up=RATE), 0.25 + 2 / 64),
        (links(delay=0.25, rate=RATE, up=RATE / 2), 0.25 + 2 / 64),
        (links(delay=0.25, down=RATE), 0.25 + 1 / 64),
        (links(delay=0.25, rate=RATE, down=RATE / 2), 0.25 + 3 / 64),
    ],
)
def test_a_lone_packet_takes_its_delay_and_each_lines_time_for_its_size(wiring: LinkLimits, seconds: float) -> None:
    """The pair's own rate and the uplink are met at once, the downlink after the delay."""
    wires: EmulatedLinks[int] = EmulatedLinks(wiring)
    wires.send(0, 1, 7, PACKET, 3.0)
    assert wires.counts[0, 1] == Count()
    assert rest(wires) == [(1, 7, 3.0 + seconds)]
    assert wires.counts[0, 1] == Count(bytes=PACKET, packets=1)
    wires.send(0, 1, 8, PACKET, 10.0)
    assert rest(wires) == [(1, 8, 10.0 + seconds)]


def test_each_direction_has_its_own_delay_and_rate() -> None:
    wiring = LinkLimits(
        np.array([[0.0, 0.5], [0.25, 0.0]]), np.array([[INF, RATE], [RATE / 4, INF]]), [INF] * 2, [INF] * 2
    )
    wires: EmulatedLinks[int] = EmulatedLinks(wiring)
    wires.send(0, 1, 1, PACKET, 0.0)
    wires.send(1, 0, 2, PACKET, 0.0)
    assert sorted(rest(wires)) == [(0, 2, 0.25 + 4 / 64), (1, 1, 0.5 + 1 / 64)]


@pytest.mark.parametrize(
    "wiring",
    [
        links(delay=0.25, rate=RATE),
        links(delay=0.25, up=RATE),
        links(delay=0.25, rate=RATE, up=2 * RATE),
        links(delay=0.25, rate=2 * RATE, up=RATE),
    ],
)
def test_a_train_comes_at_exactly_the_rate(wiring: LinkLimits) -> None:
    assert train(EmulatedLinks(wiring), 1000) == [0.25 + (number + 1) / 64 for number in range(1000)]


def test_a_train_through_a_slower_downlink_comes_at_the_downlinks_rate() -> None:
    assert train(EmulatedLinks(links(delay=0.25, rate=RATE, down=RATE / 2)), 100) == [
        0.25 + 1 / 64 + (number + 1) / 32 for number in range(100)
    ]


def test_packets_with_pauses_between_them_save_nothing_up() -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(links(rate=RATE, up=2 * RATE, down=4 * RATE))
    for second in range(1, 5):
        assert train(wires, 4, now=float(second)) == [second + (number + 1) / 64 + 1 / 256 for number in range(4)]


@pytest.mark.parametrize("sizes", [(1500, 1500), (1500, 100), (65000, 700), (40, 65000)])
def test_pairs_that_share_an_uplink_get_half_each_whatever_their_packets_are(sizes: tuple[int, int]) -> None:
    both = dict(zip([(0, 1), (0, 2)], sizes, strict=True))
    found = carried(EmulatedLinks(links(3, up=1e6)), both, 5.0)
    assert sum(found.values()) == pytest.approx(5e6, rel=0.02)
    assert found == pytest.approx(dict.fromkeys(both, 2.5e6), rel=0.03)


@pytest.mark.parametrize("sizes", [(1500, 1500), (1500, 100), (9000, 700)])
def test_pairs_that_share_a_downlink_get_half_each_whatever_their_packets_are(sizes: tuple[int, int]) -> None:
    both = dict(zip([(0, 2), (1, 2)], sizes, strict=True))
    found = carried(EmulatedLinks(links(3, down=1e6)), both, 5.0)
    assert found == pytest.approx(dict.fromkeys(both, 2.5e6), rel=0.03)


def test_pairs_with_other_hosts_do_not_disturb_each_other() -> None:
    pairs = {(0, 1): 1500, (1, 0): 1500, (2, 3): 1500}
    found = carried(EmulatedLinks(links(4, up=1e6, down=1e6)), pairs, 10.0)
    assert found == pytest.approx(dict.fromkeys(pairs, 10e6), rel=0.01)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.4, 0.45])
def test_a_pair_that_is_slower_than_its_share_gets_its_own_rate_and_leaves_the_rest(share: float) -> None:
    """Max-min fair, also where the slow pair's turn comes in the middle of another's packet."""
    found = carried(EmulatedLinks(links(3, up=1e6, pairs={(0, 1): share * 1e6})), {(0, 1): 1500, (0, 2): 1500}, 10.0)
    assert found == pytest.approx({(0, 1): share * 10e6, (0, 2): (1 - share) * 10e6}, rel=0.02)


@pytest.mark.parametrize("share", [0.5, 0.6, 0.9])
def test_a_pair_that_is_faster_than_its_share_gets_its_share(share: float) -> None:
    found = carried(EmulatedLinks(links(3, up=1e6, pairs={(0, 1): share * 1e6})), {(0, 1): 1500, (0, 2): 1500}, 20.0)
    assert found == pytest.approx({(0, 1): 10e6, (0, 2): 10e6}, rel=0.01)


def test_no_pair_exceeds_its_own_rate_after_it_had_to_wait_for_others() -> None:
    wires: EmulatedLinks[Pair] = EmulatedLinks(links(3, up=1e6, pairs={(0, 1): 6e5}))
    carried(wires, {(0, 1): 1500, (0, 2): 1500}, 20.0)
    found = carried(wires, {(0, 1): 1500}, 30.0, 20.0)
    assert found[0, 1] == pytest.approx(6e6, rel=0.02)


def test_a_slow_pair_beside_others_starves_nobody_when_one_more_joins() -> None:
    """Whatever the moment at which the other joins: what a slow pair could not use gives nobody a claim."""
    for moment in range(10):
        wires: EmulatedLinks[Pair] = EmulatedLinks(links(4, up=1e6, pairs={(0, 1): 1e5}))
        first = dict.fromkeys([(0, 1), (0, 2)], 1000)
        joins = 5.0 + moment * 0.001
        carried(wires, first, joins)
        found = carried(wires, first | {(0, 3): 1000}, joins + 2, joins)
        assert found == pytest.approx({(0, 1): 2e5, (0, 2): 9e5, (0, 3): 9e5}, rel=0.06), moment


def test_a_slow_pair_that_becomes_fast_takes_no_more_than_its_share() -> None:
    wires: EmulatedLinks[Pair] = EmulatedLinks(links(3, up=1e6, pairs={(0, 1): 1e5}))
    both = {(0, 1): 1000, (0, 2): 1000}
    carried(wires, both, 20.0)
    wires.change(links(3, up=1e6), 20.0)
    found = carried(wires, both, 25.0, 20.0)
    assert found == pytest.approx(dict.fromkeys(both, 2.5e6), rel=0.05)


def test_a_shorter_delay_overtakes_nobody() -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(links(3, delay=1.0))
    wires.send(0, 1, 1, PACKET, 0.0)
    wires.send(0, 2, 2, PACKET, 0.0)
    wires.change(links(3, delay=0.125), 0.25)
    wires.send(0, 1, 3, PACKET, 0.25)
    wires.send(1, 2, 4, PACKET, 0.25)
    assert rest(wires) == [(2, 4, 0.375), (1, 1, 1.0), (2, 2, 1.0), (1, 3, 1.0)]
    wires.send(0, 1, 5, PACKET, 2.0)
    assert rest(wires) == [(1, 5, 2.125)]


def test_a_longer_delay_holds_for_what_is_sent_from_then_on() -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(links(delay=0.5))
    wires.send(0, 1, 1, PACKET, 0.0)
    wires.change(links(delay=2.0), 0.25)
    wires.send(0, 1, 2, PACKET, 0.25)
    assert rest(wires) == [(1, 1, 0.5), (1, 2, 2.25)]


@pytest.mark.parametrize("side", ["rate", "up", "down"])
def test_another_rate_holds_though_the_queue_never_becomes_empty(side: str) -> None:
    def wiring(rate: float) -> LinkLimits:
        return links(**{side: rate})  # type: ignore[arg-type]

    wires: EmulatedLinks[Pair] = EmulatedLinks(wiring(1e6))
    pair = {(0, 1): 1000}
    assert carried(wires, pair, 10.0) == pytest.approx({(0, 1): 10e6}, rel=0.01)
    wires.change(wiring(1e5), 10.0)
    assert carried(wires, pair, 20.0, 10.0) == pytest.approx({(0, 1): 1e6}, rel=0.05)
    wires.change(wiring(2e6), 20.0)
    assert carried(wires, pair, 30.0, 20.0) == pytest.approx({(0, 1): 20e6}, rel=0.05)


@pytest.mark.parametrize("side", ["rate", "up", "down"])
def test_what_waits_goes_on_at_the_new_rate(side: str) -> None:
    """Else a queue that filled in a bad hour would drag it on."""

    def wiring(rate: float) -> LinkLimits:
        return links(**{side: rate})  # type: ignore[arg-type]

    wires: EmulatedLinks[int] = EmulatedLinks(wiring(RATE / 1024))
    for number in range(64):
        wires.send(0, 1, number, PACKET, 0.0)
    wires.change(wiring(RATE), 1.0)
    arrived = rest(wires)
    assert [number for _, number, _ in arrived] == list(range(64))
    assert arrived[-1][2] == 16.0  # the first is under way, at the old rate
    wires = EmulatedLinks(wiring(RATE / 16))
    for number in range(64):
        wires.send(0, 1, number, PACKET, 0.0)
    wires.change(wiring(RATE), 1.0)
    assert rest(wires)[-1][2] == 1.0 + 60 / 64


@pytest.mark.parametrize("side", ["rate", "up", "down"])
def test_what_waits_for_a_link_that_goes_dark_is_lost(side: str) -> None:
    def wiring(rate: float) -> LinkLimits:
        return links(**{side: rate})  # type: ignore[arg-type]

    wires: EmulatedLinks[int] = EmulatedLinks(wiring(RATE))
    for number in range(64):
        wires.send(0, 1, number, PACKET, 0.0)
    wires.change(wiring(0.0), 0.5)
    wires.change(wiring(RATE), 1.0)
    wires.send(0, 1, 99, PACKET, 1.0)
    arrived = [number for _, number, _ in rest(wires)]
    assert arrived == [*range(len(arrived) - 1), 99]
    assert len(arrived) in range(32, 35)
    assert wires.counts[0, 1].dropped == 65 - len(arrived)


@pytest.mark.parametrize(
    "wiring",
    [links(rate=1e6, queue_seconds=0.2), links(up=1e6, queue_seconds=0.2), links(rate=1e6, up=5e6, queue_seconds=0.2)],
)
def test_more_than_the_queue_takes_is_dropped(wiring: LinkLimits) -> None:
    """One packet is on its way, and 0.2 s of the rate wait."""
    wires: EmulatedLinks[int] = EmulatedLinks(wiring)
    for number in range(500):
        wires.send(0, 1, number, 1000, 0.0)
    assert wires.counts[0, 1] == Count(dropped=299)
    assert [number for _, number, _ in rest(wires)] == list(range(201))
    assert wires.counts[0, 1] == Count(bytes=201_000, packets=201, dropped=299)


def test_what_arrives_too_fast_for_a_downlink_is_dropped_there_and_counts_for_its_pair() -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(links(3, delay=0.5, down=1e6, queue_seconds=0.2))
    for number in range(500):
        wires.send(0, 2, number, 1000, 0.0)
    wires.send(1, 2, 999, 1000, 0.0)
    assert wires.counts[0, 2] == Count()
    arrived = rest(wires)
    assert len(arrived) == 202
    assert wires.counts == {(0, 2): Count(201_000, 201, 299), (1, 2): Count(1000, 1, 0)}
    assert arrived[-1][2] == pytest.approx(0.5 + 202 * 0.001)


def test_a_slow_links_queue_takes_one_large_piece() -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(links(rate=1000.0, queue_seconds=0.2))
    wires.send(0, 1, 0, LEAST_QUEUE_BYTES, 0.0)
    wires.send(0, 1, 1, LEAST_QUEUE_BYTES, 0.0)
    wires.send(0, 1, 2, 1, 0.0)
    assert [number for _, number, _ in rest(wires)] == [0, 1]


def test_the_share_that_is_to_be_lost_is_lost() -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(links(loss=0.25), seed=3)
    for number in range(10_000):
        wires.send(0, 1, number, PACKET, float(number))
    arrived, count = rest(wires), wires.counts[0, 1]
    assert count.dropped == pytest.approx(2500, abs=200)
    assert len(arrived) == count.packets == 10_000 - count.dropped


def test_losses_are_the_same_with_the_same_seed() -> None:
    def found(seed: int) -> list[int]:
        wires: EmulatedLinks[int] = EmulatedLinks(links(loss=0.5), seed)
        for number in range(100):
            wires.send(0, 1, number, PACKET, 0.0)
        return [number for _, number, _ in rest(wires)]

    assert found(1) == found(1) != found(2)


@pytest.mark.parametrize("wiring", [links(rate=0.0), links(up=0.0), links(down=0.0)])
def test_where_nothing_goes_all_is_dropped(wiring: LinkLimits) -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(wiring)
    for number in range(10):
        wires.send(0, 1, number, PACKET, 0.0)
    assert rest(wires) == []
    assert wires.counts[0, 1] == Count(dropped=10)


def test_a_site_that_goes_dark_drops_what_is_on_its_way_and_comes_back() -> None:
    """None of it may end the forwarding process."""
    wires: EmulatedLinks[int] = EmulatedLinks(links(3, delay=1.0, up=RATE, down=RATE))
    for number in range(4):
        wires.send(0, 1, number, PACKET, 0.0)
    dark = links(3, delay=1.0, rate=0.0, up=0.0, down=0.0)
    wires.change(dark, 0.5)
    wires.send(0, 1, 9, PACKET, 0.5)
    assert rest(wires) == []
    assert wires.counts[0, 1] == Count(dropped=5)
    wires.change(links(3, delay=1.0, up=RATE, down=RATE), 5.0)
    wires.send(0, 1, 10, PACKET, 5.0)
    assert rest(wires) == [(1, 10, 6.0 + 2 / 64)]


def test_nothing_is_there_before_it_is_due_and_all_of_it_is_then() -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(links(delay=0.25, rate=RATE))
    assert wires.next_time == INF
    assert wires.due(100.0) == []
    wires.send(0, 1, 1, PACKET, 200.0)
    due = 200.25 + 1 / 64
    assert wires.next_time == due
    assert wires.due(math.nextafter(due, 0.0)) == []
    assert wires.due(due) == [(1, 1, due)]
    assert wires.due(due) == []
    assert wires.next_time == INF


def test_a_slow_pair_that_waits_beside_a_busy_one_costs_no_more_and_more_work() -> None:
    """Turns of `due` in a second stay what they are: timers of a waiting pair do not add up."""
    wires: EmulatedLinks[int] = EmulatedLinks(links(3, pairs={(0, 1): 1000.0}, up=1e7))
    for _ in range(60):
        wires.send(0, 1, 0, 1000, 0.0)
    turns = []
    for second in range(20):
        turns.append(0)
        for number in range(200):
            now = second + number / 200
            while wires.next_time <= now:
                wires.due(wires.next_time)
                turns[-1] += 1
            wires.send(0, 2, 0, 1000, now)
            wires.send(0, 2, 0, 1000, now)
    assert max(turns) < 2 * min(turns[1:])


rates = st.sampled_from([0.0, 100.0, 1000.0, 33_333.0, INF])
worlds = st.builds(
    lambda values, delays, up, down, loss, queue: LinkLimits(
        np.array(delays).reshape(3, 3), np.array(values).reshape(3, 3), up, down, loss, queue
    ),
    st.lists(rates, min_size=9, max_size=9),
    st.lists(st.sampled_from([0.0, 0.01, 0.3, 2.0]), min_size=9, max_size=9),
    st.lists(rates, min_size=3, max_size=3),
    st.lists(rates, min_size=3, max_size=3),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.01, 200.0]),
)
pauses = st.sampled_from([0.0, 0.0, 0.001, 0.1, 3.0])
packets = st.tuples(
    pauses,
    st.sampled_from([(i, j) for i in range(3) for j in range(3) if i != j]),
    st.sampled_from([1, 40, 1500, 60000]),
)


@given(world=worlds, later=worlds, sent=st.lists(packets, max_size=60), changed=st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_every_packet_arrives_once_in_its_pairs_order_or_counts_as_dropped(
    world: LinkLimits, later: LinkLimits, sent: list[tuple[float, Pair, int]], changed: int
) -> None:
    wires: EmulatedLinks[int] = EmulatedLinks(world)
    now, came = 0.0, []
    for number, (pause, pair, size) in enumerate(sent):
        now += pause
        found = wires.due(now)
        assert all(at <= now for _, _, at in found)
        came += found
        if number == changed:
            wires.change(later, now)
        wires.send(*pair, number, size, now)
    while wires.next_time < INF:
        before, now = now, wires.next_time
        assert now >= before
        found = wires.due(now)
        assert all(at == now for _, _, at in found)
        assert wires.next_time > now
        came += found
    numbers: dict[Pair, list[int]] = defaultdict(list)
    for receiver, number, _ in came:
        pair = sent[number][1]
        assert receiver == pair[1]
        numbers[pair].append(number)
    assert all(found == sorted(set(found)) for found in numbers.values())
    assert [at for _, _, at in came] == sorted(at for _, _, at in came)
    for pair, count in wires.counts.items():
        assert count.packets == len(numbers[pair])
        assert count.bytes == sum(sent[number][2] for number in numbers[pair])
        assert count.packets + count.dropped == sum(one == pair for _, one, _ in sent)


@given(world=worlds, sent=st.lists(packets, max_size=40), looks=st.lists(st.integers(0, 5), min_size=40, max_size=40))
@settings(max_examples=150, deadline=None)
def test_when_packets_are_due_does_not_depend_on_when_somebody_looks(
    world: LinkLimits, sent: list[tuple[float, Pair, int]], looks: list[int]
) -> None:
    """A forwarding process that was late once loses no capacity by it."""

    def arrivals(attentive: bool) -> list[tuple[int, int, float]]:
        wires: EmulatedLinks[int] = EmulatedLinks(world)
        now, came = 0.0, []
        for number, ((pause, pair, size), look) in enumerate(zip(sent, looks, strict=False)):
            now += pause
            while attentive and wires.next_time <= now:
                came += wires.due(wires.next_time)
            if look == 0:
                came += wires.due(now)
            wires.send(*pair, number, size, now)
        return came + rest(wires)

    assert arrivals(True) == arrivals(False)
