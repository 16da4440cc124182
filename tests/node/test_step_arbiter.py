"""What makes a step final: all votes, each once, together covering every micro-batch; the same whatever their order."""

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.step_arbiter import Arbiter, Disputed, StateAgreement
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote, read_ballot
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.state_vote import StateVote

PEERS = ("a", "b", "x", "y")
DUE: dict[str, tuple[int, ...]] = {"a": (), "b": (), "x": (0, 2), "y": (1, 3)}
"""The micro-batches whose losses each of them computes."""


def votes() -> dict[str, Vote]:
    """What a plan of four stages brings, of which two compute losses of four micro-batches."""
    return {
        "a": Vote(sum_squares={0: 1.0}),
        "b": Vote(sum_squares={0: 2.0}),
        "x": Vote(losses={0: 10.0, 2: 12.0}, sum_squares={0: 3.0}),
        "y": Vote(losses={1: 11.0, 3: 13.0}, sum_squares={0: 10.0}),
    }


def decide(cast: list[tuple[str, Vote]], micro_batches: int = 4) -> Commit | None:
    """The last answer; before the last vote there is none."""
    arbiter = Arbiter(DUE if micro_batches else dict.fromkeys(PEERS, ()))
    *early, last = [arbiter.take(peer, vote) for peer, vote in cast]
    assert early == [None] * len(early)
    return last


def test_a_commit_sums_losses_and_takes_the_norm_over_all_parts() -> None:
    commit = decide(list(votes().items()))
    assert commit == Commit(loss=46.0, grad_norm=4.0)


def test_a_commit_says_what_all_peers_sent_together() -> None:
    cast = {
        peer: vote.model_copy(update={"bytes_sent": 10**place}) for place, (peer, vote) in enumerate(votes().items())
    }
    commit = decide(list(cast.items()))
    assert commit is not None
    assert commit.bytes_sent == 1111


@given(order=st.permutations(list(votes())))
def test_nothing_is_final_before_the_last_vote(order: list[str]) -> None:
    arbiter = Arbiter(DUE)
    for peer in order[:-1]:
        assert arbiter.take(peer, votes()[peer]) is None
    assert arbiter.take(order[-1], votes()[order[-1]]) is not None


numbers = st.floats(0, 1e12)


@given(losses=st.lists(numbers, min_size=4, max_size=4), squares=st.lists(numbers, min_size=4, max_size=4))
@settings(max_examples=40)
def test_every_order_of_votes_gives_the_same_bits(losses: list[float], squares: list[float]) -> None:
    """Sums in another order would round differently, and the clip norm differ between peers."""
    cast = {
        "a": Vote(sum_squares={0: squares[0]}),
        "b": Vote(sum_squares={0: squares[1]}),
        "x": Vote(losses={0: losses[0], 2: losses[2]}, sum_squares={0: squares[2]}),
        "y": Vote(losses={1: losses[1], 3: losses[3]}, sum_squares={0: squares[3]}),
    }
    commits = {decide([(peer, cast[peer]) for peer in order]) for order in itertools.permutations(PEERS)}
    assert len(commits) == 1
    (commit,) = commits
    assert commit is not None
    assert commit.loss == math.fsum(losses)
    assert commit.grad_norm == math.sqrt(math.fsum(squares))


def test_a_strangers_vote_is_refused_and_changes_nothing() -> None:
    arbiter = Arbiter(DUE)
    with pytest.raises(Refused, match="not due"):
        arbiter.take("stranger", Vote())
    assert [arbiter.take(*cast) for cast in votes().items()][-1] == Commit(loss=46.0, grad_norm=4.0)


def test_a_second_vote_is_refused_and_does_not_stand_in_for_a_missing_one() -> None:
    arbiter = Arbiter(DUE)
    cast = list(votes().items())
    for peer, vote in cast[:3]:
        arbiter.take(peer, vote)
    with pytest.raises(Refused, match="not due"):
        arbiter.take(*cast[0])
    assert arbiter.take(*cast[3]) == Commit(loss=46.0, grad_norm=4.0)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({1: 11.0}, "a vote of y with no loss of micro-batch 3"),
        ({1: 11.0, 3: 13.0, 4: 1.0}, "a vote of y with a loss that is not its own, of micro-batch 4"),
        ({1: 11.0, 4: 13.0}, "a vote of y with no loss of micro-batch 3"),
        ({1: 11.0, 3: 13.0, 0: 10.0}, "a vote of y with a loss that is not its own, of micro-batch 0"),
        ({}, "a vote of y with no loss of micro-batch 1"),
    ],
)
def test_losses_that_do_not_cover_every_micro_batch_once_are_refused(losses: dict[int, float], said: str) -> None:
    with pytest.raises(Refused, match=said):
        decide(list((votes() | {"y": Vote(losses=losses)}).items()))


def test_one_peer_alone_commits_by_its_own_vote() -> None:
    assert Arbiter({"a": (0, 1)}).take("a", Vote(losses={1: 2.0, 0: 1.0}, sum_squares={0: 9.0})) == Commit(
        loss=3.0, grad_norm=3.0
    )


def test_a_ballot_without_losses_needs_none() -> None:
    assert decide([(peer, Vote()) for peer in PEERS], micro_batches=0) == Commit()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    for text in (f'{{"losses": {{"0": {number}}}}}', f'{{"sum_squares": {{"0": {number}}}}}'):
        with pytest.raises(Refused, match=r"^Vote: "):
            read_ballot(text.encode(), Vote)
    for key in ("loss", "grad_norm", "seconds"):
        with pytest.raises(Refused, match=r"^Commit: "):
            read_ballot(f'{{"{key}": {number}}}'.encode(), Commit)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{",
        b"[" * 100_000,
        b'{"more": 1}',
        b'{"losses": [1.0]}',
        b'{"losses": {"-1": 1.0}}',
        b'{"losses": {"x": 1.0}}',
        b'{"sum_squares": {"-1": 1.0}}',
        b'{"bytes_sent": -1}',
        b'{"bytes_sent": 1.5}',
    ],
)
def test_bytes_that_are_no_vote_are_refused(text: bytes) -> None:
    with pytest.raises(Refused, match=r"^Vote: "):
        read_ballot(text, Vote)


@given(data=st.binary(max_size=100))
def test_random_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    try:
        read_ballot(memoryview(data), Vote)
    except Refused:
        return
    assert isinstance(json.loads(data), dict)


@given(vote=st.builds(Vote, losses=st.dictionaries(st.integers(0, 99), numbers), sum_squares=st.just({0: 1e-300})))
def test_a_vote_is_read_as_it_was_written(vote: Vote) -> None:
    for form in (bytes, bytearray, memoryview):
        assert read_ballot(form(vote.model_dump_json().encode()), Vote) == vote


FAULTY: list[dict[str, Any]] = [
    {"sum_squares": {0: -100.0}},
    {"sum_squares": {0: 1.7e308, 1: 1.7e308}},
    {"sum_squares": {0: 1e120}},
    {"sum_squares": {1 << 16: 1.0}},
    {"losses": {1: 1.7e308, 3: 1.7e308}},
    {"bytes_sent": 1 << 60},
]


@pytest.mark.parametrize("faulty", FAULTY)
def test_numbers_that_no_peer_has_that_has_not_diverged_are_refused(faulty: dict[str, Any]) -> None:
    """A norm of 1e60 would clip everybody's gradients to nothing; a negative square had no root."""
    vote = {"losses": {1: 11.0, 3: 13.0}} | faulty
    with pytest.raises(Refused, match=r"^Vote: "):
        read_ballot(json.dumps(vote).encode(), Vote)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("faulty", [*FAULTY[:3], FAULTY[4], {"losses": {}}, {"losses": {0: 1.0, 1: 1.0}}])
def test_a_faulty_vote_is_its_senders_fault_whenever_it_comes_and_spoils_no_others(
    faulty: dict[str, Any], place: int
) -> None:
    """The last voter was blamed, whose vote made the sum that had no root."""
    arbiter, honest = Arbiter(DUE), votes()
    liar = honest["y"].model_copy(update={"losses": dict(honest["y"].losses)} | faulty)
    order = [peer for peer in PEERS if peer != "y"]
    order.insert(place, "y")
    for peer in order:
        if peer == "y":
            with pytest.raises(Refused, match="a vote of y with"):
                arbiter.take("y", liar)
        else:
            assert arbiter.take(peer, honest[peer]) is None
    assert arbiter.take("y", honest["y"]) == Commit(loss=46.0, grad_norm=4.0)


def test_the_largest_votes_that_are_taken_have_a_sum() -> None:
    due = {str(peer): (peer,) for peer in range(100)}
    arbiter = Arbiter(due)
    largest = [Vote(losses={peer: 1e15}, sum_squares=dict.fromkeys(range(1000), 1e30)) for peer in range(100)]
    *_, commit = [arbiter.take(str(peer), vote) for peer, vote in enumerate(largest)]
    assert commit is not None
    assert read_ballot(commit.model_dump_json().encode(), Commit) == commit


REPLICAS = [("a", "b"), ("x", "y")]
TIED = 1 << 15
"""Number of a bucket that the first stage and the last share."""


def replicated() -> dict[str, Vote]:
    """What two pipelines of two stages bring whose ends share their embeddings."""
    ends: dict[str, Any] = {"shared": "5" * 64}
    first: dict[str, Any] = {"reduced": "1" * 64, "sum_squares": {0: 1.0, 1: 2.0, TIED: 6.0}, **ends}
    last: dict[str, Any] = {"reduced": "2" * 64, "sum_squares": {0: 7.0, TIED: 6.0}, **ends}
    return {
        "a": Vote(**first),
        "b": Vote(**first),
        "x": Vote(losses={0: 10.0, 2: 12.0}, **last),
        "y": Vote(losses={1: 11.0, 3: 13.0}, **last),
    }


def test_a_buckets_squares_count_once_however_many_hold_it() -> None:
    arbiter = Arbiter(DUE, REPLICAS)
    *_, commit = [arbiter.take(*cast) for cast in replicated().items()]
    assert commit == Commit(loss=46.0, grad_norm=4.0)


DISPUTES: list[tuple[str, dict[str, Any], str, tuple[str, ...]]] = [
    ("b", {"reduced": "3" * 64}, "reduced", ("a", "b")),
    ("a", {"reduced": ""}, "reduced", ("a", "b")),
    ("y", {"reduced": "3" * 64}, "reduced", ("x", "y")),
    ("x", {"shared": ""}, "shared", PEERS),
    ("b", {"shared": "3" * 64}, "shared", PEERS),
    ("b", {"sum_squares": {0: 1.0, 1: math.nextafter(2.0, 3.0), TIED: 6.0}}, "sum_squares", ("a", "b")),
    ("y", {"sum_squares": {0: 7.0, 1: 0.0, TIED: 6.0}}, "sum_squares", ("x", "y")),
    ("y", {"sum_squares": {0: 7.0}}, "sum_squares", ("x", "y")),
]


@pytest.mark.parametrize("order", [PEERS, PEERS[::-1]])
@pytest.mark.parametrize(("liar", "claims", "over", "peers"), DISPUTES)
def test_replicas_that_vote_unlike_things_are_a_dispute_between_them(
    liar: str, claims: dict[str, Any], over: str, peers: tuple[str, ...], order: tuple[str, ...]
) -> None:
    """One of them lies, and none of their votes is wrong by itself."""
    cast = replicated()
    cast[liar] = cast[liar].model_copy(update=claims)
    arbiter = Arbiter(DUE, REPLICAS)
    for peer in order[:-1]:
        assert arbiter.take(peer, cast[peer]) is None
    with pytest.raises(Disputed) as caught:
        arbiter.take(order[-1], cast[order[-1]])
    assert (caught.value.over, caught.value.peers) == (over, peers)


def test_two_stages_that_agree_among_themselves_on_what_they_share_are_in_dispute() -> None:
    cast = replicated()
    for peer in ("x", "y"):
        cast[peer] = cast[peer].model_copy(update={"sum_squares": {0: 7.0, TIED: 5.0}})
    *early, latest = cast.items()
    arbiter = Arbiter(DUE, REPLICAS)
    assert [arbiter.take(*one) for one in early] == [None] * 3
    with pytest.raises(Disputed) as caught:
        arbiter.take(*latest)
    assert (caught.value.over, caught.value.peers) == ("sum_squares", PEERS)


@pytest.mark.parametrize("ballot", [Ballot.START, Ballot.EVALUATION])
@pytest.mark.parametrize(
    "claims",
    [
        {"reduced": "1" * 64},
        {"shared": "1" * 64},
        {"sum_squares": {0: 1.0}},
        {
            "state": {
                "peer": "b",
                "mark": {"step": 1, "plan": 1},
                "layers": [0, 2],
                "digest": "1" * 64,
                "signature": "0" * 128,
            }
        },
    ],
)
def test_a_vote_on_gradients_where_there_are_none_is_refused(ballot: Ballot, claims: dict[str, Any]) -> None:
    """It would be held against receipts of a step that is over, and the honest would seem to lie."""
    arbiter = Arbiter({"a": (), "b": ()}, [("a", "b")], ballot=ballot)
    with pytest.raises(Refused, match="a vote of b on gradients, where there are none"):
        arbiter.take("b", Vote.model_validate(claims))


def state(peer: str, digest: str, step: int = 10, plan: int = 1, layers: tuple[int, int] | None = None) -> StateVote:
    layers = layers or ((0, 2) if peer in {"a", "b"} else (2, 4))
    mark = Mark(step=step, plan=plan)
    return StateVote(peer=peer, mark=mark, layers=layers, digest=digest * 64, signature="0" * 128)


def agreement() -> StateAgreement:
    return StateAgreement(1, {(0, 2): ("a", "b"), (2, 4): ("x", "y")})


def voting(known: StateAgreement, *states: StateVote) -> None:
    arbiter = Arbiter(DUE, REPLICAS, states=known)
    said = {one.peer: one for one in states}
    for peer, vote in replicated().items():
        arbiter.take(peer, vote.model_copy(update={"state": said.get(peer)}))


def test_replicas_that_say_unlike_things_of_a_state_are_a_dispute_however_late_one_says_it() -> None:
    known = agreement()
    voting(known, state("a", "1"), state("x", "2"))
    voting(known, state("a", "3", step=20), state("b", "1"), state("y", "2"))
    with pytest.raises(Disputed) as caught:
        voting(known, state("a", "3", step=20), state("b", "4", step=20))
    assert (caught.value.over, caught.value.peers) == ("state", ("a", "b"))
    assert caught.value.evidence == (state("a", "3", step=20), state("b", "4", step=20))


def test_a_peer_that_says_another_thing_of_the_same_state_than_before_is_in_dispute_with_itself() -> None:
    """Whoever else it contradicts: its own two votes prove that it lies."""
    known = agreement()
    voting(known, state("x", "1"), state("y", "1"))
    with pytest.raises(Disputed) as caught:
        voting(known, state("x", "2"))
    assert caught.value.peers == ("x",)
    assert caught.value.evidence == (state("x", "1"), state("x", "2"))


def test_nobody_is_in_dispute_over_what_others_have_made() -> None:
    """Else a liar ends a plan for what is not its business; and a dispute that is over would end each plan anew."""
    known = agreement()
    voting(known, state("a", "1"), state("b", "1"), state("x", "2", layers=(0, 2)), state("y", "3", layers=(0, 4)))
    voting(known, state("a", "1", plan=0), state("b", "2", plan=0))


def test_a_vote_on_a_state_is_its_voters_own() -> None:
    with pytest.raises(Refused, match="a vote of a with a vote on a state that is not its own"):
        Arbiter(DUE, REPLICAS, states=agreement()).take(
            "a", replicated()["a"].model_copy(update={"state": state("b", "1")})
        )


def test_what_a_peer_says_of_ever_more_states_takes_no_more_memory() -> None:
    known = agreement()
    for step in range(100):
        voting(known, state("a", "1", step=step))
    assert [one.mark.step for one in known._said["a"]] == [96, 97, 98, 99]


@pytest.mark.parametrize("claims", [{"shared": "5" * 64}, {"sum_squares": {TIED: 1.0}}])
def test_a_stage_in_the_middle_shares_no_embeddings(claims: dict[str, Any]) -> None:
    arbiter = Arbiter(dict.fromkeys(("a", "m", "x"), ()), [("a",), ("m",), ("x",)])
    with pytest.raises(Refused, match="a vote of m on embeddings"):
        arbiter.take("m", Vote(**claims))


@pytest.mark.parametrize(("follows", "votes"), [("1" * 64, "2" * 64), ("1" * 64, ""), ("", "1" * 64)])
def test_a_vote_that_follows_another_commit_is_refused(follows: str, votes: str) -> None:
    arbiter = Arbiter({"a": ()}, follows=follows)
    with pytest.raises(Refused, match="a vote of a that follows another commit"):
        arbiter.take("a", Vote(follows=votes))
    assert arbiter.take("a", Vote(follows=follows)) == Commit()


def test_a_commit_ends_no_plan_unless_it_says_so() -> None:
    commit = decide(list(votes().items()))
    assert commit is not None
    assert (commit.last, commit.kept) == (False, False)
    over = commit.model_copy(update={"last": True, "kept": True})
    assert read_ballot(over.model_dump_json().encode(), Commit) == over
