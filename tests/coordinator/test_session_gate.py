"""What a member may ask of the broker: its own topics, of bounded size, at a bounded rate; and who gets a message."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.serve.message_router import MessageRouter
from dtfm_coordinator.serve.mqtt_packets import Connect, Publication, Subscribe
from dtfm_coordinator.serve.session_gate import BROKER_LIMITS, Allowance, BrokerLimits, PeerAllowance, SessionGate
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.control.messages import PRESENCE, TOPICS
from dtfm_protocol.errors import Refused
from tests.coordinator.test_mqtt_packets import connect, packet, text
from tests.harness.membership import SWARM

OWNER, ALICE, BOB = "owner", "alice", "bob"
RULES = TopicRules(SWARM, [OWNER])


def topic(name: str, peer: str = "") -> str:
    return f"dtfm/{SWARM}/{name}" + (f"/{peer}" if peer else "")


def publish(name: str, payload: bytes = b"x", *, retain: bool = False) -> bytes:
    return packet(0x30 | retain, text(name) + payload)


def subscribe(*names: str) -> bytes:
    return packet(0x82, b"\x00\x01" + b"".join(text(name) + b"\x00" for name in names))


def gate(peer: str = ALICE, limits: BrokerLimits = BROKER_LIMITS, *, counted: bool = True) -> SessionGate:
    """The gate of a session that has begun."""
    opened = SessionGate(peer, RULES, limits, PeerAllowance(limits, 0.0) if counted else None)
    assert isinstance(opened.on(connect(0x02, text(f"{peer}.1")), 0.0)[0], Connect)
    return opened


# topics


@pytest.mark.parametrize("name", TOPICS)
def test_a_member_writes_its_own_topics_and_a_coordinator_those_of_coordinators_too(name: str) -> None:
    kind = TOPICS[name]
    size = kind.limit
    for peer in (OWNER, ALICE):
        if kind.author == "peer":
            assert RULES.check_message(peer, topic(name, peer), size, retain=kind.retained) is kind
            with pytest.raises(Refused, match="of another peer"):
                RULES.check_message(peer, topic(name, BOB), size, retain=kind.retained)
        elif peer == OWNER:
            assert RULES.check_message(peer, topic(name), size, retain=kind.retained) is kind
        else:
            with pytest.raises(Refused, match="coordinators alone"):
                RULES.check_message(peer, topic(name), size, retain=kind.retained)


@pytest.mark.parametrize("name", TOPICS)
def test_what_is_too_large_or_empty_or_not_to_be_kept_is_refused(name: str) -> None:
    where = topic(name, OWNER if TOPICS[name].author == "peer" else "")
    with pytest.raises(Refused, match="more than"):
        RULES.check_message(OWNER, where, TOPICS[name].limit + 1, retain=False)
    with pytest.raises(Refused, match="empty"):
        RULES.check_message(OWNER, where, 0, retain=TOPICS[name].retained)
    if not TOPICS[name].retained:
        with pytest.raises(Refused, match="to be kept"):
            RULES.check_message(OWNER, where, 1, retain=True)


@pytest.mark.parametrize(
    "where",
    [
        "", "/", "#", "+", "dtfm", "dtfm/#", f"dtfm/{SWARM}", f"dtfm/{SWARM}/#", f"dtfm/{SWARM}/+", "$SYS/uptime",
        f"dtfm/{'f' * 16}/plan", f"other/{SWARM}/plan", topic("news"), topic("plan", ALICE), topic("presence"),
        topic("presence", "#"), topic("presence", "+/+"), topic("presence", f"{ALICE}/x"), topic("presence", ""),
        topic("presence") + "/", topic("presence", "a+"),
    ],
)  # fmt: skip
def test_topics_that_the_swarm_does_not_have_are_nobodys(where: str) -> None:
    for peer in (OWNER, ALICE):
        with pytest.raises(Refused):
            RULES.check_message(peer, where, 1, retain=False)
        with pytest.raises(Refused):
            RULES.check_filter(peer, where)


def test_members_read_what_they_need() -> None:
    for name in ("job", "plan", "phase", "epoch", "ledger", "probe"):
        RULES.check_filter(ALICE, topic(name))
    for peer in ("+", ALICE, BOB):
        RULES.check_filter(ALICE, topic("presence", peer))
    RULES.check_filter(ALICE, topic("challenge", ALICE))
    for where in (topic("report", "+"), topic("report", ALICE), topic("challenge", "+"), topic("challenge", BOB)):
        with pytest.raises(Refused, match="not for it to read"):
            RULES.check_filter(ALICE, where)
        RULES.check_filter(OWNER, where)


# sessions


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (connect(0x02, text("bob.1")), "client id of another"),
        (connect(0x02, text("alice")), "client id of another"),
        (connect(0x02, text("alicex.1")), "client id of another"),
        (connect(0x02, text("")), "client id of another"),
        (connect(0x82, text("alice.1"), text("bob")), "user name of another"),
        (connect(0x26, text("alice.1"), text(topic("presence", "bob")), text("x")), "presence of another"),
        (connect(0x06, text("alice.1"), text(topic("report", "alice")), text("x")), "a last will on report"),
        (connect(0x26, text("alice.1"), text(topic("plan")), text("x")), "coordinators alone"),
        (connect(0x26, text("alice.1"), text(topic("presence", "alice")), text("")), "empty"),
        (connect(0x26, text("alice.1"), text(topic("presence", "alice")), text("x" * 9000)), "9000 bytes"),
        (packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + text("alice.1")), "0 s between"),
        (packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x79" + text("alice.1")), "121 s between"),
        (publish(topic("report", "alice")), "does not begin as one"),
        (connect(0x02, text("alice.1")) * 2, "second introduction"),
    ],
)
def test_a_session_begins_in_its_own_name_or_not_at_all(data: bytes, why: str) -> None:
    opened = SessionGate(ALICE, RULES, BROKER_LIMITS, PeerAllowance(BROKER_LIMITS, 0.0))
    with pytest.raises(Refused, match=why):
        opened.on(data, 0.0)


def test_a_session_with_a_last_will_on_its_own_presence_begins() -> None:
    opened = SessionGate(ALICE, RULES, BROKER_LIMITS, PeerAllowance(BROKER_LIMITS, 0.0))
    where = topic("presence", ALICE)
    (first,) = opened.on(connect(0xAE, text("alice.1"), text(where), text("gone"), text(ALICE)), 0.0)
    assert first == Connect("alice.1", ALICE, 10, Publication(where, b"gone", True))


def test_what_a_member_may_send_goes_on() -> None:
    where = topic("report", ALICE)
    assert gate().on(publish(where) + subscribe(topic("plan"), topic("presence", "+")), 1.0) == [
        Publication(where, b"x"),
        Subscribe(1, (topic("plan"), topic("presence", "+"))),
    ]


@pytest.mark.parametrize(
    "data",
    [
        publish(topic("presence", BOB), retain=True), publish(topic("presence", BOB), b"", retain=True),
        publish(topic("plan"), retain=True), publish(topic("plan"), b"", retain=True), publish(topic("report", BOB)),
        publish(topic("presence", ALICE), b"", retain=True),
        publish(topic("presence", ALICE), bytes(PRESENCE.limit + 1)),
        publish(topic("report", ALICE), retain=True), publish("elsewhere", retain=True), subscribe("#"),
        subscribe(topic("report", "+")),
    ],
)  # fmt: skip
def test_what_a_member_may_not_send_ends_its_session(data: bytes) -> None:
    with pytest.raises(Refused):
        gate().on(data, 1.0)


def test_one_session_reads_a_bounded_number_of_topics() -> None:
    opened = gate(limits=replace(BROKER_LIMITS, filters=3))
    peers = [topic("presence", str(number)) for number in range(4)]
    opened.on(subscribe(*peers[:3]), 0.0)
    opened.on(subscribe(*peers[:3]), 0.0)  # which it reads already
    opened.on(packet(0xA2, b"\x00\x01" + text(peers[0])), 0.0)
    opened.on(subscribe(peers[3]), 0.0)
    with pytest.raises(Refused, match="more than 3 topics"):
        opened.on(subscribe(peers[0]), 0.0)


# rates


def test_a_flood_ends_the_session_and_a_new_one_begins_where_the_old_one_was() -> None:
    limits = replace(BROKER_LIMITS, packets=1.0, packet_burst=10.0)
    allowance = PeerAllowance(limits, 0.0)
    report = publish(topic("report", ALICE))
    first = SessionGate(ALICE, RULES, limits, allowance)
    first.on(connect(0x02, text("alice.1")) + 9 * report, 0.0)
    with pytest.raises(Refused, match="more packets"):
        first.on(report, 0.0)
    second = SessionGate(ALICE, RULES, limits, allowance)
    second.on(connect(0x02, text("alice.2")) + report, 2.0)
    with pytest.raises(Refused, match="more packets"):
        second.on(report, 2.0)
    SessionGate(ALICE, RULES, limits, allowance).on(connect(0x02, text("alice.3")), 3.0)


def test_bytes_are_counted_before_they_are_read() -> None:
    limits = replace(BROKER_LIMITS, bytes=100.0, byte_burst=1000.0)
    opened = gate(limits=limits)
    half = publish(topic("report", ALICE), bytes(5000))
    opened.on(half[:900], 0.0)
    with pytest.raises(Refused, match="more bytes"):
        opened.on(half[900:1100], 0.0)
    coordinator = gate(OWNER, limits, counted=False)
    coordinator.on(publish(topic("plan"), bytes(5000)), 0.0)


def test_an_honest_node_stays_far_below_its_share() -> None:
    """A report of a hundred rows, ten times as often as usual for a minute; then a plan in each for a while."""
    opened = gate()
    for turn in range(600):
        opened.on(publish(topic("report", ALICE), bytes(60_000)), turn / 10)
    for turn in range(60):
        opened.on(publish(topic("report", ALICE), bytes(1_000_000)), 60 + turn)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 20)), max_size=40))
def test_an_allowance_gives_its_burst_and_its_rate_and_no_more(uses: list[tuple[float, float]]) -> None:
    allowance, now, used = Allowance(2.0, 10.0, 0.0), 0.0, 0.0
    for pause, amount in uses:
        now += pause
        if allowance.use(amount, now):
            used += amount
    assert used <= 10.0 + 2.0 * now + 1e-6
    assert allowance.is_full(now + 5.001)


# who gets a message


def test_a_message_goes_to_those_who_asked_each_once() -> None:
    router: MessageRouter[str] = MessageRouter()
    router.subscribe("a", [topic("presence", "+"), topic("presence", ALICE)])
    router.subscribe("b", [topic("presence", BOB)])
    router.subscribe("c", [topic("plan")])
    assert router.publish(Publication(topic("presence", ALICE), b"x")) == ["a"]
    assert sorted(router.publish(Publication(topic("presence", BOB), b"x"))) == ["a", "b"]
    router.unsubscribe("a", [topic("presence", "+")])
    router.leave("b")
    assert router.publish(Publication(topic("presence", BOB), b"x")) == []
    assert router.publish(Publication(topic("plan"), b"x")) == ["c"]


def test_the_last_message_is_kept_and_given_to_those_who_come() -> None:
    router: MessageRouter[str] = MessageRouter()
    for payload in (b"1", b"2"):
        router.publish(Publication(topic("plan"), payload, True, 7))
    router.publish(Publication(topic("plan"), b"3"))  # not to be kept
    router.publish(Publication(topic("presence", ALICE), b"here", True))
    assert router.subscribe("a", [topic("plan")]) == [Publication(topic("plan"), b"2", True)]
    assert router.subscribe("b", [topic("presence", "+"), topic("presence", ALICE)]) == [
        Publication(topic("presence", ALICE), b"here", True)
    ]
    assert router.subscribe("c", [topic("epoch")]) == []


def test_what_is_kept_is_bounded_and_those_who_are_here_stay() -> None:
    router: MessageRouter[str] = MessageRouter(most_kept=10)
    router.publish(Publication(topic("plan"), b"p", True))
    for number in range(100):
        router.publish(
            Publication(topic("presence", f"peer{number}"), b"x", True), lambda peer: peer in {"peer0", "peer3"}
        )
    assert len(router.kept) == 10
    assert topic("plan") in router.kept
    assert topic("presence", "peer0") in router.kept
    assert topic("presence", "peer99") in router.kept
