"""The chain of plans that a plan descends from: which states of the model lie along it, who made them final, and which
layers of them a peer may hold. Pure.

Each plan is signed, and names the plans before it and the state with which each began. So a state of a plan that ended
earlier, however genuine, leads nowhere: nobody can bring it back.
"""

from functools import cached_property
from itertools import accumulate
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from dtfm_protocol.bounds import MOST_PEERS, MOST_STAGES, PeerName, Version
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.schema import Schema

LINEAGE_LIMIT = 16
"""Plans that a plan names before itself, the newest. Snapshots of older ones are of no use any more: then the
coordinator's checkpoint is gone back to."""
LINEAGE_PEERS = 1 << 14
"""Peers that these plans may name in all, a peer once a plan; of larger plans fewer are named. Each name is some 55
bytes of every message that has a plan in it."""
_Replicas = Annotated[tuple[PeerName, ...], Field(min_length=1, max_length=MOST_PEERS)]


class Ancestor(Schema):
    """What must be known of a plan, once it is over, to tell its states from made-up ones."""

    version: Version
    began: Mark = Mark()
    """The state that it went on from."""
    stages: Annotated[tuple[LayerRange, ...], Field(min_length=1, max_length=MOST_STAGES)]
    """Decoder layers `[first, end)` of each stage."""
    replicas: Annotated[tuple[_Replicas, ...], Field(max_length=MOST_STAGES)]
    """Peers of each stage, in the plan's order."""
    shadows: Annotated[tuple[PeerName | None, ...], Field(max_length=MOST_STAGES)] = ()
    """Peers that keep copies, as in `Plan.shadows`."""

    @model_validator(mode="after")
    def _stages_have_peers(self) -> Self:
        if len(self.replicas) != len(self.stages) or len(self.shadows) not in (0, len(self.stages)):
            raise ValueError(f"{len(self.stages)} stages with peers of {len(self.replicas)}")
        return self

    @property
    def arbiter(self) -> str:
        """The peer that made steps final: the first in the plan's order."""
        return self.replicas[0][0]

    def layers_of(self, peer: str) -> LayerRange | None:
        """Return the layers that `peer` trained; None: none."""
        return self._layers.get(peer)

    @cached_property
    def _layers(self) -> dict[str, LayerRange]:
        return {peer: span for span, peers in zip(self.stages, self.replicas, strict=True) for peer in peers}

    def copied_to(self, peer: str) -> tuple[LayerRange, ...]:
        """List the layers of which `peer` kept copies."""
        return tuple(span for span, shadow in zip(self.stages, self.shadows, strict=False) if shadow == peer)


class Chain(NamedTuple):
    """A plan and those that it descends from, oldest first; each but the last ended with the state with which the next
    began."""

    plans: tuple[Ancestor, ...] = ()
    given: frozenset[tuple[str, LayerRange]] = frozenset()
    """Peers that the last plan names as sources of the state with which it begins, each with layers that it has."""
    commit: SignedCommit | None = None
    """The commit that made that state final, as far as it is known."""

    @property
    def began(self) -> Mark:
        """The state with which the last plan began."""
        return self.plans[-1].began if self.plans else Mark()

    def maker(self, mark: Mark) -> Ancestor | None:
        """Return the plan that made `mark` final; None: none of these has, or only after the next had begun."""
        for index, one in enumerate(self.plans):
            if one.version == mark.plan:
                end = self.plans[index + 1].began.step if index + 1 < len(self.plans) else None
                return one if one.began.step < mark.step and (end is None or mark.step <= end) else None
        return None

    def replicas_of(self, mark: Mark, layers: LayerRange) -> tuple[str, ...]:
        """Return the peers of the stage of `layers` that made the state `mark`; none where the chain does not tell."""
        maker = self.maker(mark)
        return maker.replicas[maker.stages.index(layers)] if maker is not None and layers in maker.stages else ()

    def has(self, mark: Mark) -> bool:
        """Whether `mark` lies along the chain: the initial state, one with which a plan began, or one that a plan made
        final before the next began."""
        return mark == Mark() or any(one.began == mark for one in self.plans) or self.maker(mark) is not None

    def reaches(self, mark: Mark) -> bool:
        """Whether the chain tells of `mark` at all: it may be older than the oldest plan here."""
        oldest = self.plans[0] if self.plans else None
        return oldest is not None and not (mark.plan < oldest.version and mark.step <= oldest.began.step)

    def is_open(self, mark: Mark) -> bool:
        """Whether `mark` is one of the last plan, whose end nobody has signed yet: it takes a commit to believe it."""
        return bool(self.plans) and self.plans[-1].version == mark.plan

    def grants(self, peer: str, mark: Mark, layers: LayerRange, *, live: bool) -> bool:
        """Whether `peer` may hold just these layers of `mark`: it trained them, loaded them for a plan that begins with
        it, or keeps copies of them on its disk."""
        for one in self.plans:
            if (mark == one.began or mark.plan == one.version) and one.layers_of(peer) == layers:
                return True
            if one.version == mark.plan and not live and layers in one.copied_to(peer):
                return True
        return mark == self.began and (peer, layers) in self.given

    def up_to(self, mark: Mark) -> tuple[Ancestor, ...]:
        """Return the lineage of a plan that goes on from `mark`: plans after the one that made it have led nowhere."""
        before = tuple(one for one in self.plans if one.version <= mark.plan)
        # Nothing is known of a state's past where its plan is not among these, e.g. of an old checkpoint.
        if not before or before[-1].version != mark.plan:
            return ()
        named = accumulate(sum(map(len, one.replicas)) for one in reversed(before[-LINEAGE_LIMIT:]))
        return before[-max(1, sum(peers <= LINEAGE_PEERS for peers in named)) :]
