"""What happens while one plan follows another, and what is to be done: the words of `PlanChange`, as plain values."""

from typing import Literal, NamedTuple

from dtfm_coordinator.plan_change.recovery import Electorate

LATE_SECONDS = 3.0
"""How long peers that are heard of may take to promise once enough have: whoever is late brings no state."""
GENTLY_SECONDS = 30.0
"""How long the step under way may take to end before a plan is ended in the middle of it, longer where steps are; and
how long peers may take to take a plan."""
LOOK_SECONDS = 1.0
"""How often it is looked again who may have promised, or ended, while there are too few."""

Doors = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""By peer, the hosts and ports at which it took connections."""


# -- what is known ------------------------------------------------------------------------------------------------


class Announced(NamedTuple):
    """An `Epoch` as plain values."""

    called: int = 0
    gently: bool = False
    parked: bool = False
    in_force: int = 0
    started: int = 0


class Durable(NamedTuple):
    """What a coordinator must not forget."""

    epoch: Announced = Announced()
    promised: frozenset[tuple[str, int]] = frozenset()
    """Peers, and the newest version that each has promised to this coordinator: of the last call, or later ones."""
    doors: Doors = ()
    """Where peers of plan `doors_of` took connections: one that is refused there later tells that the process has
    ended."""
    doors_of: int = 0


class Role(NamedTuple):
    """Who decides here, and with whom."""

    me: str
    alone: bool
    """Whether the swarm has no other coordinator."""
    without_quorum: bool = False
    """Whether peers that do not answer are gone for good, as the owner says."""


class Base(NamedTuple):
    """A plan that the next one must be the only one to follow."""

    plan: Electorate
    ended: frozenset[str] = frozenset()
    """Peers whose process under this plan has ended."""


class Stand(NamedTuple):
    """What one peer has bound itself to; see `Promise`."""

    peer: str
    version: int
    to: str
    accepted: int
    taken: Electorate | None = None
    """A plan that it has taken of another coordinator."""


ChangePhase = Literal["settled", "stopping", "called", "gathering", "late", "agreed", "offered", "holding"]
"""How far a change of plan has come:

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
    """The coordinator is back, and this plan is on its disk; peers may still train under it."""

    plan: Electorate


class Call(NamedTuple):
    """Another plan is wanted."""

    beyond: int = 0
    """The greatest version that anybody who is there has promised to anyone: who has could not answer a smaller one."""
    gently: bool = False
    """Whether the step under way may end first."""
    parked: bool = False
    """Whether no plan can follow for now: a checkpoint is to be handed in first."""
    patience: float = GENTLY_SECONDS
    """Seconds that the step under way may take."""


class Seek(NamedTuple):
    """The plan that was called for is to be made as soon as it can be the only one."""


class Stood(NamedTuple):
    """A peer said what it has promised; that holds whatever becomes of it, or of its process."""

    peer: str
    version: int
    to: str


class Present(NamedTuple):
    """This is who is heard of now, and where they stand."""

    stands: tuple[Stand, ...]
    time_is_up: bool = False
    """Whether as many seconds have passed as the last `Wait` said."""


class ProcessesEnded(NamedTuple):
    """Of the peers of plan `version`, these processes have ended: every one that `FindEnded` can tell of."""

    version: int
    peers: frozenset[str]


class Offer(NamedTuple):
    """The plan that was agreed on has been made."""

    plan: Electorate


class Held(NamedTuple):
    """The plan that was taken is on the disk."""


class Written(NamedTuple):
    """This is on the disk now."""

    durable: Durable


class Begun(NamedTuple):
    """All peers of `plan` hold its state."""

    plan: Electorate


class DoorsFound(NamedTuple):
    """Where the peers of plan `version` take connections now."""

    version: int
    doors: Doors


ChangeEvent = Returned | Call | Seek | Stood | Present | ProcessesEnded | Offer | Held | Written | Begun | DoorsFound


# -- what is to be done -------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """Have it on the disk, after what was to be written before, and say so with `Written`."""

    durable: Durable


class Publish(NamedTuple):
    """Say it to the swarm."""

    epoch: Announced


class Propose(NamedTuple):
    """Publish the plan of this version."""

    version: int


class Hold(NamedTuple):
    """Have the plan of this version be the one that this coordinator comes back to, and say so with `Held`."""

    version: int


class FindDoors(NamedTuple):
    """Find out where the plan's peers take connections; answered by `DoorsFound`."""

    plan: Electorate


class FindEnded(NamedTuple):
    """Knock at the doors of those who are not connected any more; answered by `ProcessesEnded`, if with nobody."""

    version: int
    doors: Doors


class Lack(NamedTuple):
    """Say that only `answered` of the `electors` that decide on what follows plan `version` have answered."""

    version: int
    answered: int
    electors: int


class Wait(NamedTuple):
    """Tell who is present in so many seconds, if this phase lasts so long, that its time is up."""

    seconds: float


Action = Write | Publish | Propose | Hold | FindDoors | FindEnded | Lack | Wait
