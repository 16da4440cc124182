"""What is said of a coordinator that stands by: of whom, how far behind, and when it takes over. Pure."""

from typing import NamedTuple

from dtfm_coordinator.swarm.overview.overview import Health
from dtfm_coordinator.swarm.overview.spoken_numbers import counted, duration
from dtfm_protocol.identity.keys import short


class StandbyView(NamedTuple):
    """View of a swarm by a coordinator that stands by."""

    leader: str
    """Peer id of the coordinator that leads; "": none is known to."""
    is_connected: bool
    """Whether the swarm's broker is reached."""
    takes_over_in: float | None
    """Seconds until this coordinator takes over unless one is heard of; None: one leads."""
    step: int
    """Newest step that is written down here."""
    heard_step: int
    """Newest step of which members have told."""
    plan_version: int | None
    """Version of the plan that is written down here; None: there is none yet."""
    is_paused: bool
    """Whether the owner has paused the run."""


def standby_health(view: StandbyView) -> Health:
    """Return how a coordinator that stands by is, for its owner."""
    behind = view.heard_step - view.step
    known = (
        f"This coordinator knows the run up to step {view.step:,}"
        + (f", {counted(behind, 'step')} behind." if behind else ".")
        if view.step
        else "No step of the run has come to it yet."
    )
    if view.takes_over_in is None:
        paused = ", and has paused the run" if view.is_paused else ""
        return Health(
            level="wait",
            sentence=f"Standing by: {short(view.leader)} leads{paused}. {known}",
            advice="There is nothing to do: this coordinator takes over by itself when that one is gone for good. "
            "Steer the run on that one's page.",
        )
    soon = f"This coordinator takes over in {duration(view.takes_over_in)} unless one comes back."
    if not view.is_connected:
        return Health(
            level="warn",
            sentence=f"Standing by, but the swarm does not answer. {soon} {known}",
            advice="If the other coordinator runs, look whether this machine's network is up.",
        )
    return Health(level="warn", sentence=f"Standing by: no coordinator leads at the moment. {soon} {known}")
