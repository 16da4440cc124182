"""Which frames are let in, and what becomes of those that were posted; by value, without streams."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dtfm_node.engine.mailbox import UNREAD_EVALUATIONS, Mailbox, PeerLost
from dtfm_node.engine.rejected_frames import FrameFault, FrameRefused, RejectedFrames
from dtfm_protocol.wire.frames import FrameHeader, Key, Kind

PLAN = 4
KEY = Key(Kind.ACTIVATION, 1, 0)
VOTE = Key(Kind.VOTE, 1, 0)


def header(key: Key = KEY, size: int = 4, version: int = PLAN) -> FrameHeader:
    return FrameHeader(version, key, size)


def refusal(mailbox: Mailbox, sender: str, what: FrameHeader) -> FrameRefused:
    with pytest.raises(FrameRefused) as caught:
        mailbox.admit(sender, what)
    return caught.value


def test_a_frame_is_posted_admitted_put_and_taken_once() -> None:
    mailbox = Mailbox(PLAN)
    mailbox.post("a", KEY, 4)
    assert not mailbox.is_decided("a", KEY)
    mailbox.admit("a", header())
    assert not mailbox.is_decided("a", KEY)
    mailbox.put("a", KEY, b"1234")
    assert mailbox.is_decided("a", KEY)
    assert mailbox.take("a", KEY) == b"1234"
    with pytest.raises(KeyError):
        mailbox.is_decided("a", KEY)
    assert refusal(mailbox, "a", header()).fault is FrameFault.NOT_DUE


@pytest.mark.parametrize(
    ("sender", "what", "fault", "said"),
    [
        ("a", header(version=5), FrameFault.PLAN, "a frame of plan 5 under plan 4"),
        ("a", header(version=3), FrameFault.PLAN, "a frame of plan 3 under plan 4"),
        (
            "a",
            header(Key(Kind.ACTIVATION, 2, 0)),
            FrameFault.NOT_DUE,
            "a frame that is not due: ACTIVATION 0 of step 2",
        ),
        ("a", header(Key(Kind.GRADIENT, 1, 0)), FrameFault.NOT_DUE, "a frame that is not due: GRADIENT 0 of step 1"),
        ("b", header(), FrameFault.NOT_DUE, "a frame that is not due: ACTIVATION 0 of step 1"),
        ("a", header(size=3), FrameFault.SIZE, "3 bytes for ACTIVATION 0 of step 1 where 4 belong"),
        ("a", header(size=1 << 60), FrameFault.SIZE, f"{1 << 60} bytes for ACTIVATION 0 of step 1 where 4 belong"),
        ("a", header(VOTE, 11), FrameFault.SIZE, "11 bytes for VOTE 0 of step 1 where 10 belong"),
    ],
)
def test_what_is_not_due_as_it_is_is_refused_and_stays_due(
    sender: str, what: FrameHeader, fault: FrameFault, said: str
) -> None:
    mailbox = Mailbox(PLAN)
    mailbox.post("a", KEY, 4)
    mailbox.post("a", VOTE, 10, exact=False)
    refused = refusal(mailbox, sender, what)
    assert (refused.fault, str(refused)) == (fault, said)
    mailbox.admit("a", header())
    mailbox.admit("a", header(VOTE, 0))


@pytest.mark.parametrize("put", [False, True])
def test_a_frame_is_not_let_in_a_second_time(put: bool) -> None:
    """Neither while it comes nor once it is here."""
    mailbox = Mailbox(PLAN)
    mailbox.post("a", KEY, 4)
    mailbox.admit("a", header())
    if put:
        mailbox.put("a", KEY, b"1234")
    assert refusal(mailbox, "a", header()).fault is FrameFault.NOT_DUE


def test_who_is_lost_fails_what_it_owes_keeps_what_it_sent_and_is_lost_for_its_first_reason() -> None:
    mailbox, here, begun, never, later = Mailbox(PLAN), *(Key(Kind.PART, 1, index) for index in range(4))
    for key in (here, begun, never):
        mailbox.post("a", key, 1)
        mailbox.post("b", key, 1)
    mailbox.admit("a", header(here, 1))
    mailbox.put("a", here, b"1")
    mailbox.admit("a", header(begun, 1))
    assert mailbox.lose(PeerLost("a", "first")) == [begun, never]
    assert mailbox.lose(PeerLost("a", "second")) == []
    mailbox.post("a", later, 1)
    mailbox.put("a", begun, b"too late")
    assert mailbox.take("a", here) == b"1"
    for key in (begun, never, later):
        with pytest.raises(PeerLost, match="first"):
            mailbox.take("a", key)
    assert mailbox.lost.keys() == {"a"}
    assert not mailbox.is_decided("b", never)


@pytest.mark.parametrize("most", [1, UNREAD_EVALUATIONS])
def test_each_sender_has_room_for_so_many_evaluations_until_they_are_taken(most: int) -> None:
    mailbox = Mailbox(PLAN, most)
    keys = [Key(Kind.EVALUATION, 1, index) for index in range(most + 1)]
    for key in keys:
        mailbox.post("a", key, 1)
    for key in keys[:most]:
        assert mailbox.has_room("a")
        mailbox.admit("a", header(key, 1))
        mailbox.take_room("a")
        mailbox.put("a", key, b"1")
    assert not mailbox.has_room("a")
    assert mailbox.has_room("b")
    mailbox.take("a", keys[0])
    assert mailbox.has_room("a")


class Deliveries(RuleBasedStateMachine):
    """Whatever the order of events, a posted frame has one outcome, and it is the first that it could have."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox(PLAN)
        self.posted: dict[tuple[str, Key], str] = {}
        """"due", "begun", "here" or "lost"."""
        self.gone: set[str] = set()

    senders = st.sampled_from("ab")
    keys = st.builds(Key, st.sampled_from([Kind.PART, Kind.VOTE]), st.just(1), st.integers(0, 2))

    @rule(sender=senders, key=keys)
    def post(self, sender: str, key: Key) -> None:
        if (sender, key) not in self.posted:
            self.mailbox.post(sender, key, 1)
            self.posted[sender, key] = "lost" if sender in self.gone else "due"

    @rule(sender=senders, key=keys)
    def admit(self, sender: str, key: Key) -> None:
        if self.posted.get((sender, key)) == "due":
            self.mailbox.admit(sender, header(key, 1))
            self.posted[sender, key] = "begun"
        else:
            assert refusal(self.mailbox, sender, header(key, 1)).fault is FrameFault.NOT_DUE

    @precondition(lambda self: "begun" in self.posted.values())
    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(sorted((f for f, s in self.posted.items() if s == "begun"), key=str)))
        self.mailbox.put(*frame, b"1")
        self.posted[frame] = "here"

    @rule(sender=senders)
    def lose(self, sender: str) -> None:
        owed = {key for (peer, key), s in self.posted.items() if peer == sender and s in ("due", "begun")}
        assert set(self.mailbox.lose(PeerLost(sender, "gone"))) == owed
        self.gone.add(sender)
        self.posted.update({(sender, key): "lost" for key in owed})

    @rule(sender=senders, key=keys)
    def take(self, sender: str, key: Key) -> None:
        match self.posted.get((sender, key)):
            case None:
                with pytest.raises(KeyError):
                    self.mailbox.take(sender, key)
            case "here":
                assert self.mailbox.take(sender, key) == b"1"
                del self.posted[sender, key]
            case "lost":
                with pytest.raises(PeerLost):
                    self.mailbox.take(sender, key)
                del self.posted[sender, key]

    @invariant()
    def decides_what_is_decided(self) -> None:
        for (sender, key), state in self.posted.items():
            assert self.mailbox.is_decided(sender, key) == (state in ("here", "lost"))


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "s1", "s2"]), st.sampled_from(FrameFault)), max_size=30))
def test_each_refusal_is_counted_and_named_once_a_peer_and_fault_and_strangers_are_one(
    refused: list[tuple[str, FrameFault]],
) -> None:
    rejected_frames, named = RejectedFrames({"a", "b"}), []
    for peer, fault in refused:
        if rejected_frames.note(peer, fault):
            named.append(("stranger" if peer.startswith("s") else peer, fault))
    assert rejected_frames.counts.total() == len(refused)
    assert len(named) == len(set(named))
    assert set(named) == {("stranger" if peer.startswith("s") else peer, fault) for peer, fault in refused}
