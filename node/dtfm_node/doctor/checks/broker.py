"""Check of the way to the coordinator: its broker's name, TCP and TLS, whether it lets in, and who is there."""

import asyncio
import contextlib
import secrets
import ssl
from dataclasses import dataclass, replace

from dtfm_node.doctor.findings import Finding, bad, counted, good, warn
from dtfm_node.doctor.host_lookup import OTHER_PROGRAM, Host, closed_because, visit
from dtfm_protocol.control.messages import JOB, PHASE, PRESENCE, Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.job.resolved_job import ResolvedJob

GROUP = "coordinator"
TLS_SECONDS = 5.0
LOGIN_SECONDS = 6.0
LOGIN_LOOK_SECONDS = 0.1
RETAINED_SECONDS = 3.0
"""For what the broker keeps of the coordinator to come."""
SLOW_SECONDS = 1.0
LISTED_LIMIT = 4096
"""Number of members that are counted at most."""


@dataclass(frozen=True)
class BrokerObservation:
    """Facts seen at one broker. What comes after the first fault was not looked at."""

    host: Host
    tls: str | None = None
    """Fault of the TLS connection in words; "": there is none; None: the address is one without TLS."""
    certificate: bool = False
    """Whether the fault of the TLS connection is the broker's certificate."""
    login: str = ""
    """Reason why the broker did not let this machine in; "": it did, or that was not tried."""
    tried: bool = False
    """Whether this machine has asked to be let in: only a member can."""
    entered: bool = False
    job: ResolvedJob | None = None
    phase: Phase | None = None
    coordinators: tuple[str, ...] = ()
    """Peer ids of the coordinators that are connected to the broker."""
    members: int = 0
    """Number of nodes that are connected to the broker."""
    clock_ahead: float | None = None
    """Seconds that the coordinator's clock is ahead of this machine's (`ControlPlane.clock_ahead`); None: not known."""
    refused: tuple[str, ...] = ()
    """Reasons why messages from the broker were dropped, at most three."""


async def look(
    invite: Invite,
    address: BrokerAddress,
    member: tuple[Identity, Admission] | None = None,
    *,
    login: float = LOGIN_SECONDS,
    retained: float = RETAINED_SECONDS,
) -> BrokerObservation:
    """Connect to a broker, go as far in as it lets, and return what was seen.

    Args:
        member: key and credential of the node that this machine has been in the swarm; None: it has not been there,
            and does not ask to be let in.
        login: seconds in which it is to let this machine in.
        retained: seconds in which what it keeps of the coordinator is to come.
    """
    seen = BrokerObservation(await visit(address.host, address.port))
    if not seen.host.open:
        return seen
    if address.tls:
        seen = await _look_at_tls(seen, address)
        if seen.tls:
            return seen
    if member is None:
        return seen
    return await _enter(replace(seen, tried=True), invite, address, member, login, retained)


async def _look_at_tls(seen: BrokerObservation, address: BrokerAddress) -> BrokerObservation:
    try:
        context = address.context()
    except (ssl.SSLError, ValueError) as error:
        return replace(seen, tls=f"the invite's own certificate cannot be read: {error}", certificate=True)
    try:
        async with asyncio.timeout(TLS_SECONDS):
            first = seen.host.open[0]
            _, writer = await asyncio.open_connection(first.host, first.port, ssl=context, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        return replace(seen, tls=error.verify_message, certificate=True)
    except TimeoutError:
        return replace(seen, tls=f"no answer for {TLS_SECONDS:g} s")
    except OSError as error:
        return replace(seen, tls=str(error) or type(error).__name__)
    writer.transport.abort()
    return replace(seen, tls="")


async def _enter(
    seen: BrokerObservation,
    invite: Invite,
    address: BrokerAddress,
    member: tuple[Identity, Admission],
    login: float,
    retained: float,
) -> BrokerObservation:
    """Connect as a node does, and read without writing: the node itself may be connected, too."""
    identity, admission = member
    control = ControlPlane(
        address,
        invite.swarm,
        invite.coordinators,
        Post(invite.swarm, identity),
        secrets.token_hex(8),
        identity=identity,
        admission=admission,
        only_looks=True,
    )
    jobs: list[ResolvedJob] = []
    phases: list[Phase] = []
    present: dict[str, bool] = {}
    changed = asyncio.Event()

    def take_job(_: str, job: ResolvedJob) -> None:
        jobs[:] = [job]
        changed.set()

    def take_phase(_: str, phase: Phase) -> None:
        phases[:] = [phase]
        changed.set()

    def take_presence(peer: str, presence: Presence) -> None:
        if peer in present or peer in invite.coordinators or len(present) < LISTED_LIMIT:
            present[peer] = presence.online
        changed.set()

    def coordinators() -> tuple[str, ...]:
        return tuple(peer for peer in invite.coordinators if present.get(peer))

    control.on(JOB, take_job)
    control.on(PHASE, take_phase)
    control.on(PRESENCE, take_presence)
    connection = asyncio.create_task(control.run())
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(login):
                await _answer(control)
        if not control.connected.is_set():
            return replace(seen, login=control.last_error or f"no answer for {login:g} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(retained):
                while not (jobs and phases and coordinators()):
                    changed.clear()
                    await changed.wait()
    finally:
        connection.cancel()
        await asyncio.wait([connection])
    return replace(
        seen,
        entered=True,
        job=jobs[0] if jobs else None,
        phase=phases[0] if phases else None,
        coordinators=coordinators(),
        members=sum(online for peer, online in present.items() if peer not in invite.coordinators),
        clock_ahead=control.clock_ahead,
        refused=tuple(control.dropped)[:3],
    )


async def _answer(control: ControlPlane) -> None:
    """Wait until the broker lets this machine in, or says that it will not."""
    entered = asyncio.create_task(control.connected.wait())
    try:
        while not _is_denied(control.last_error):
            if (await asyncio.wait([entered], timeout=LOGIN_LOOK_SECONDS))[0]:
                return
    finally:
        entered.cancel()


def _is_denied(why: str) -> bool:
    """Whether `why` says that the broker does not let this machine in, in words of MQTT's return codes 4 and 5."""
    return any(word in why.lower() for word in ("authori", "password", "user name"))


def judge(brokers: list[BrokerObservation]) -> list[Finding]:
    """Judge all brokers: a fault of one is bad only if none of them lets this machine in and has a job."""
    found = [finding for seen in brokers for finding in _judge_one(seen)]
    if not any(_serves(seen) for seen in brokers):
        return found
    # One that serves is enough for a node, which tries them in turn.
    return [warn(one.group, one.name, one.seen, one.todo) if one.todo else one for one in found]


def _serves(seen: BrokerObservation) -> bool:
    """Whether a broker is all that a node needs, as far as was looked."""
    if not seen.tried:
        return seen.tls == ""
    return seen.entered and seen.job is not None


def _judge_one(seen: BrokerObservation) -> list[Finding]:
    host = seen.host
    if not host.open:
        return [bad(GROUP, "broker", *closed_because(host))]
    found = [_judge_connection(host)]
    if seen.tls is not None:
        found.append(_judge_tls(seen))
        if seen.tls:
            return found
    if not seen.tried:
        return [*found, good(GROUP, "entry", "not tried: this machine gets its credential when it joins")]
    if not seen.entered:
        return [*found, _judge_login(seen)]
    return [*found, good(GROUP, "entry", f"the broker at {host} lets this machine in"), *_judge_coordinator(seen)]


def _judge_connection(host: Host) -> Finding:
    took = min(attempt.seconds for attempt in host.open)
    seen = f"{host} takes connections, in {1000 * took:.0f} ms"
    if took < SLOW_SECONDS:
        return good(GROUP, "broker", seen)
    return warn(GROUP, "broker", f"{seen}: that is slow", "close what else uses this connection, and look again")


def _judge_tls(seen: BrokerObservation) -> Finding:
    if not seen.tls:
        return good(GROUP, "TLS", "the broker's certificate is accepted")
    if not seen.certificate:
        return bad(
            GROUP,
            "TLS",
            f"{seen.host} does not speak TLS as it should: {seen.tls}",
            "ask the swarm's owner whether the broker's address begins with mqtts:// rightly",
        )
    if any(word in seen.tls for word in ("expired", "not yet valid")):
        todo = "check this machine's date; if it is right, tell the swarm's owner to renew the broker's certificate"
    else:
        todo = (
            "try from another network, for someone on this one may stand between; if it stays so, ask the swarm's "
            "owner for the newest invite"
        )
    return bad(GROUP, "TLS", f"the certificate of {seen.host} is not accepted: {seen.tls}", todo)


def _judge_login(seen: BrokerObservation) -> Finding:
    if _is_denied(seen.login):
        return bad(
            GROUP,
            "entry",
            f"the broker at {seen.host} does not accept this machine's credential ({seen.login})",
            "ask the swarm's owner for a new invite: the credential has expired, or was taken back",
        )
    return bad(
        GROUP,
        "entry",
        f"what listens at {seen.host} does not answer as an MQTT broker does ({seen.login})",
        OTHER_PROGRAM,
    )


def _judge_coordinator(seen: BrokerObservation) -> list[Finding]:
    found = []
    if seen.refused:
        found.append(
            warn(
                GROUP,
                "messages",
                f"the broker keeps messages that are refused: {'; '.join(seen.refused)}",
                "tell the swarm's owner: somebody else writes to the broker",
            )
        )
    if seen.coordinators:
        who = ", ".join(map(short, seen.coordinators))
        found.append(good(GROUP, "alive", f"coordinator {who} is connected, and {counted(seen.members, 'node')}"))
    else:
        found.append(
            bad(
                GROUP,
                "alive",
                f"the broker at {seen.host} is there, and no coordinator is connected to it",
                "ask the swarm's owner to start the coordinator; `dtfm-node join` may wait for it with --timeout",
            )
        )
    if seen.phase is not None:
        found.append(_judge_phase(seen.phase))
    if seen.job is None:
        found.append(
            bad(GROUP, "job", "no job is published", "ask the swarm's owner whether the coordinator has started well")
        )
    return found


def _judge_phase(phase: Phase) -> Finding:
    if phase.name == "failed":
        return bad(GROUP, "phase", f"the swarm has stopped: {phase.text}", "ask the swarm's owner to start it again")
    if phase.name == "done":
        return warn(
            GROUP, "phase", f"the job is done: {phase.text}", "ask the swarm's owner for the invite to the next job"
        )
    return good(GROUP, "phase", phase.text or phase.name)
