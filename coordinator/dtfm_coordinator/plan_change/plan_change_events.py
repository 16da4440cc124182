"""Events and actions of `PlanChange` as plain values: what happens while one plan follows another, and what is to be
done."""

from typing import Literal, NamedTuple

from dtfm_coordinator.plan_change.plan_electors import Electorate
from dtfm_protocol.process.timeouts import TIMEOUTS

Doors = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""Hosts and ports at which each peer took connections, as pairs of peer id and addresses."""


# -- what is known ------------------------------------------------------------------------------------------------


class Announced(NamedTuple):
    """Message `Epoch` as plain values."""

    called: int = 0
    gently: bool = False
    parked: bool = False
    in_force: int = 0
    started: int = 0


class Durable(NamedTuple):
    """Values that a coordinator must not forget: they are kept on its disk."""

    epoch: Announced = Announced()
    promised: frozenset[tuple[str, int]] = frozenset()
    """Newest version that each peer has promised to this coordinator, as (peer, version): of the last call, or later
    ones."""
    doors: Doors = ()
    """Addresses at which peers of plan `doors_of` took connections: a refusal there later tells that the process has
    ended."""
    doors_of: int = 0
    learnt: Electorate | None = None
    """Newest plan that peers have shown with their promises: it may be in force, though not by this coordinator, or not
    as far as it remembers."""
    forgotten: int = 0
    """Version up to which this coordinator may have made plans that it does not remember, as its disk was put back to
    what it had been earlier. 0: it remembers all."""


class Role(NamedTuple):
    """Role of the coordinator that decides: its peer id, and with whom it decides."""

    me: str
    alone: bool
    """Whether the swarm has no other coordinator."""
    without_quorum: bool = False
    """Whether peers that do not answer are gone for good, as the owner says."""


class Base(NamedTuple):
    """Plan that the next one follows: the next one must be the only plan to do so."""

    plan: Electorate
    ended: frozenset[str] = frozenset()
    """Peer ids of those whose process under this plan has ended."""


class Stand(NamedTuple):
    """Promise of one peer (`Promise`) as plain values."""

    peer: str
    version: int
    to: str
    accepted: int


ChangePhase = Literal["settled", "stopping", "called", "gathering", "late", "agreed", "offered", "holding"]
"""Phase of a change of plan:

- settled: none is under way
- stopping: called for, and the step under way may end first
- called: all earlier plans are over, and no new one is sought yet
- gathering: too few have promised
- late: enough have promised, and the others are waited for a little
- agreed: a plan may be made; it is the only one of this version that may ever be
- offered: it is published, and peers take it
- holding: enough have taken it, and the disk takes it and its epoch
"""


# -- what happens -------------------------------------------------------------------------------------------------


class Returned(NamedTuple):
    """Event: the coordinator is back, and this plan is on its disk; peers may still train under it."""

    plan: Electorate


class Call(NamedTuple):
    """Event: another plan is wanted."""

    beyond: int = 0
    """Greatest version that any connected peer has promised to any coordinator: it could not promise a smaller one."""
    gently: bool = False
    """Whether the step under way may end first."""
    parked: bool = False
    """Whether no plan can follow for now: a checkpoint is to be handed in first."""
    patience: float = TIMEOUTS.step_end
    """Seconds that the step under way may take."""


class Seek(NamedTuple):
    """Event: the plan that was called for is to be made as soon as it can be the only one."""


class Stood(NamedTuple):
    """Event: a peer said what it has promised; that holds whatever becomes of it, or of its process."""

    peer: str
    version: int
    to: str
    taken: Electorate | None = None
    """Plan that the peer has taken before, where the coordinator that calls may not know of it; None: there is none."""


class Present(NamedTuple):
    """Event: these are the promises of all peers whose reports come."""

    stands: tuple[Stand, ...]
    time_is_up: bool = False
    """Whether the seconds of the last `Wait` have passed."""


class ProcessesEnded(NamedTuple):
    """Event: of the peers of plan `version`, these processes have ended; they are all that `FindEnded` can tell of."""

    version: int
    peers: frozenset[str]


class Offer(NamedTuple):
    """Event: the plan that was agreed on has been made."""

    plan: Electorate


class Held(NamedTuple):
    """Event: the plan that was taken is on the disk."""


class Written(NamedTuple):
    """Event: these values are on the disk now."""

    durable: Durable


class Begun(NamedTuple):
    """Event: all peers of `plan` hold its state."""

    plan: Electorate


class DoorsFound(NamedTuple):
    """Event: the peers of plan `version` take connections at these addresses now."""

    version: int
    doors: Doors


ChangeEvent = Returned | Call | Seek | Stood | Present | ProcessesEnded | Offer | Held | Written | Begun | DoorsFound


# -- what is to be done -------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """Action: write the values to the disk, after what was to be written before, and answer with `Written`."""

    durable: Durable


class Publish(NamedTuple):
    """Action: publish the epoch to the swarm."""

    epoch: Announced


class Propose(NamedTuple):
    """Action: publish the plan of this version."""

    version: int


class Hold(NamedTuple):
    """Action: write down the plan of this version as the one that this coordinator comes back to, and answer with
    `Held`."""

    version: int


class FindDoors(NamedTuple):
    """Action: find the addresses at which the plan's peers take connections, and answer with `DoorsFound`."""

    plan: Electorate


class FindEnded(NamedTuple):
    """Action: knock at the doors of peers that are not connected any more, and answer with `ProcessesEnded`, also with
    none."""

    version: int
    doors: Doors


class Lack(NamedTuple):
    """Action: say that only `answered` of the `electors` that decide on what follows plan `version` have answered."""

    version: int
    answered: int
    electors: int


class Wait(NamedTuple):
    """Action: after so many seconds, if this phase lasts so long, feed `Present` with its time up."""

    seconds: float


Action = Write | Publish | Propose | Hold | FindDoors | FindEnded | Lack | Wait
