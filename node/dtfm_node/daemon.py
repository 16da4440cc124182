"""One member of a swarm: joins by invite, says what it can do, serves the tasklets it is given, says goodbye."""

import asyncio
import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch

from dtfm_node.arrival import Arrival
from dtfm_node.control.contribution_keeper import ContributionKeeper
from dtfm_node.control.desk_client import DeskClient
from dtfm_node.control.display import Display
from dtfm_node.control.enrolment_client import EnrolmentClient
from dtfm_node.control.inbox import Inbox
from dtfm_node.control.job_words import job_in_words
from dtfm_node.control.reporter import Reporter
from dtfm_node.control.wake_watch import watch_for_wake
from dtfm_node.doctor.closed_ports import check_data_ports
from dtfm_node.engine.device import choose, describe
from dtfm_node.engine.device_profile import availability, measure_profile
from dtfm_node.engine.job_survey import JobSurvey, Surveyor, local_survey
from dtfm_node.engine.optimizers import load_update
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.tracer import NO_TRACE, TraceFile, Tracer
from dtfm_node.limits.availability_watch import AvailabilityWatch
from dtfm_node.limits.draining import Draining
from dtfm_node.limits.machine_readings import SystemReadings
from dtfm_node.links import probe
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.publisher import Publisher
from dtfm_node.links.timed_transfers import PROBE
from dtfm_node.links.witness import Witness
from dtfm_node.node_options import NodeOptions
from dtfm_node.runner.ahead_fetch import AheadFetch
from dtfm_node.runner.plan_check import spare_memory
from dtfm_node.runner.plan_loop import PlanLoop
from dtfm_node.runner.plan_worker import PlanWorker
from dtfm_node.runner.promise_store import PromiseStore
from dtfm_node.state.ahead_giving import AheadGiver
from dtfm_node.state.checkpointer import Checkpointer
from dtfm_node.state.disk_budget import DiskBudget, most_disk
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.base_pieces import FOLDER as BASE_FOLDER
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.base_transfers import BASE, serve_base
from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.checkpoint.transfers import SHARDS, STATE, serve_shards, serve_state
from dtfm_protocol.control.messages import PRESENCE, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.open_planes import Planes, open_planes
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.freshness_files import message_counter
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts
from dtfm_protocol.transport.dial_rule import dial_rule
from dtfm_protocol.transport.dialling import multiaddresses_to_dial
from dtfm_protocol.transport.ip_addresses import own_addresses
from dtfm_protocol.transport.multiaddress import announced_port
from dtfm_protocol.transport.rate_cap import RateCap, TrafficCaps
from dtfm_protocol.wire.stream import Handler, Stream

ALONE_LOOK_SECONDS = 0.1
SENT_AWAY = "The owner has sent this machine away; `dtfm-node join` comes back."


class Daemon:
    """The state of one membership."""

    def __init__(
        self,
        invite: Invite,
        folder: Path,
        options: NodeOptions,
        display: Display,
        timeouts: Timeouts = TIMEOUTS,
        surveyor: Surveyor = local_survey,
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            invite: names the swarm and its coordinators.
            folder: the state folder, which is locked.
            options: what the person at the machine decides.
            display: shows that person what happens.
            timeouts: limits of waiting.
            surveyor: tells what a job asks for before anything of it is built.
            accepted: called once this node is let in, and the machine can hold to all that `options` say.
        """
        self._timeouts, self._surveyor, self._accepted = timeouts, surveyor, accepted
        self._invite, self._folder, self._options, self._display = invite, folder, options, display
        self._identity = Identity.load_or_create(folder / "key")
        self._post = Post(invite.swarm, self._identity, counter=message_counter(folder))
        self._me = self._identity.peer_id
        self._session = secrets.token_hex(8)
        self._reporter = Reporter(self._session, folder / "status.json", display)
        self._inbox = Inbox(invite, self._me, display, self._reporter, self._session)
        self._profile: Profile | None = None
        """What this node offers; None before it was measured."""
        self._plan_loop: PlanLoop | None = None
        """Loop over plans; None before it begins."""
        self._leave = asyncio.Event()
        self._serving = False
        self._caps = TrafficCaps(RateCap(options.upload), RateCap(options.download))
        self._arrival = Arrival(
            invite, self._identity, self._session, self._inbox, display, self._presence, timeouts, options.timeout
        )
        self._arrival.has_new_key = options.has_new_key

    async def run(self) -> None:
        """Stay until the job is done.

        Raises:
            UserError: nobody answers, another daemon has this identity, or the job cannot run here.
        """
        if self._options.threads is not None:
            torch.set_num_threads(self._options.threads)
        device = choose(self._options.device)
        self._reporter.save()  # so that nobody reads what an earlier run has said last
        self._display.note(f"joining swarm {self._invite.swarm} as {self._me}")
        credentials = EnrolmentClient(self._invite, self._identity, self._folder)
        arrival = self._arrival
        arrival.is_newcomer = self._options.is_newcomer or credentials.known() is None
        obtaining = credentials.obtain(arrival.patience)
        admission = await arrival.unless_closed(obtaining, BrokerAddress.entrances(self._invite))
        credentials.keep(admission)
        self._inbox.knows(admission)
        rules, gpu = self._options.rules, device.index if device.type == "cuda" else None
        readings = SystemReadings(use=rules.when_idle, network=rules.not_metered, gpu=gpu)
        watch = AvailabilityWatch(self._folder, rules, readings)
        await watch.check()
        self._accepted()
        control = arrival.control(self._folder, admission, self._post)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(control.run()),
                tasks.create_task(credentials.keep_fresh(admission, control.refused)),
                tasks.create_task(self._inbox.until_misfit()),
            ]
            if await self._until_available(watch, control):
                with self._tracer() as tracer, self._machine(device, tracer) as machine:
                    await arrival.enter(control)
                    await self._begin(machine, control, admission, watch)
            for task in background:
                task.cancel()

    async def _until_available(self, watch: AvailabilityWatch, control: ControlPlane) -> bool:
        """Wait until this node may work, as a member that says why it does not; whether it is to work then, and was not
        sent away meanwhile."""
        waiting = asyncio.create_task(watch.until_available(self._waits))
        sent_away = asyncio.create_task(self._inbox.sent_away.wait())
        telling = asyncio.create_task(self._tell_of_pause(control))
        try:
            done, _ = await asyncio.wait({waiting, sent_away, telling}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (waiting, sent_away, telling):
                task.cancel()
            await asyncio.gather(waiting, sent_away, telling, return_exceptions=True)
        if self._inbox.sent_away.is_set():
            self._display.note(SENT_AWAY)
            return False
        self._reporter.end_pause()
        return True

    async def _tell_of_pause(self, control: ControlPlane) -> None:
        """Be a member that does nothing, as soon as a coordinator is there.

        Raises:
            UserError: another daemon has this identity.
        """
        await control.connected.wait()
        await self._inbox.job()
        await self._arrival.look_around(control)
        await control.publish(PRESENCE, self._presence())
        await self._reporter.run(control)

    def _machine(self, device: torch.device, tracer: Tracer) -> AbstractContextManager[Runtime]:
        options = self._options
        return Runtime.running(device, tracer, compiled=options.compiled, pace=options.pace, share=options.share)

    def _tracer(self) -> AbstractContextManager[Tracer]:
        folder = self._options.trace
        return nullcontext(NO_TRACE) if folder is None else TraceFile.open(folder, self._me)

    async def _begin(
        self, machine: Runtime, control: ControlPlane, admission: Admission, watch: AvailabilityWatch
    ) -> None:
        """Find out what the job asks for, while this node looks around and connects to the others; measure this
        machine, and serve.

        Raises:
            UserError: another daemon has this identity, nobody answers, or the job cannot run here.
        """
        async with asyncio.TaskGroup() as tasks:
            surveying = tasks.create_task(self._surveyed(machine))
            await self._arrival.look_around(control)  # a second daemon may not be met by others
            registry = Registry(self._invite.swarm, self._post)
            async with await self._opening(registry, control, admission) as planes:
                survey = await surveying
                profile = await self._measured(machine, survey)
                await self._serve(machine, survey, profile, registry, planes, control, admission, watch)

    async def _opening(
        self, registry: Registry, control: ControlPlane, admission: Admission
    ) -> AbstractAsyncContextManager[Planes]:
        """Return a context that connects this node to the others for as long as it lasts.

        Raises:
            UserError: none of them can be reached.
        """
        port, caps = self._options.port, self._caps
        # Where the connection to the broker leads is no matter of what an invite, or its name server, says.
        dials = dial_rule(own_addresses(), (control.remote,) if control.remote else (), lan=self._options.lan)
        doors = admission.coordinators.renamed(self._invite.doors)
        await check_data_ports(await multiaddresses_to_dial(doors, dials))
        return open_planes(
            self._identity,
            admission,
            self._invite.service,
            registry,
            listen=self._options.listen or self._default_listen(),
            dials=dials,
            port=port or announced_port(self._options.announce),
            direct_port=port + 1 if port else 0,
            announce=self._options.announce,
            bootstrap=doors,
            caps=caps,
        )

    async def _serve(
        self,
        machine: Runtime,
        survey: JobSurvey,
        profile: Profile,
        registry: Registry,
        planes: Planes,
        control: ControlPlane,
        admission: Admission,
        watch: AvailabilityWatch,
    ) -> None:
        """Be a member: offer what this machine has, and do what plans say."""
        job, plane, caps = await self._inbox.job(), planes.data, self._caps
        self._display.sent_bytes = lambda: caps.up.total
        self._reporter.traffic = lambda: (caps.up.total, caps.down.total)
        shards, budget = ShardFolder(self._folder / "tokens"), self._disk_budget()
        pieces = PieceFolder(self._folder / BASE_FOLDER)
        budget.counts(lambda: sum(shards.sizes().values()))
        budget.counts(lambda: sum(pieces.sizes().values()))
        uplink, witness = UplinkPacer(), Witness()
        uplink.traffic = self._reporter.traffic
        await plane.serve(PROBE, self._unless_paused(lambda stream: probe.answer(stream, uplink, witness)))
        await plane.serve(SHARDS, self._unless_paused(lambda stream: serve_shards(stream, shards.find)))
        await plane.serve(BASE, self._unless_paused(lambda stream: serve_base(stream, pieces)))
        profile = profile.model_copy(update={"addresses": await plane.addresses(), "port": plane.port})
        snapshots = Snapshots(self._folder / "snapshots", budget)
        await asyncio.to_thread(snapshots.load)
        holdings = Inventory(snapshots, machine.compute, pieces=pieces)
        table = state_table(job.training.optimizer, job.training.weights)
        most_bytes = table.most_file_bytes(model_sizes(job.config).total)
        signer = Signer(self._identity, self._invite.swarm)
        keeping = Checkpointer.running(plane, uplink, snapshots, most_bytes, signer)
        async with keeping as checkpointer, asyncio.TaskGroup() as tasks:
            self._inbox.when_kept(checkpointer.confirm)
            spare = partial(self._spare_memory, job, profile)
            giver = AheadGiver(holdings, uplink, machine.compute, spare)
            give = self._unless_paused(lambda stream: serve_state(stream, holdings, giver.give))
            await plane.serve(STATE, give)
            publisher = Publisher(plane, planes.discovery, registry, profile, uplink, witness)
            promise_store = PromiseStore(
                self._folder / "promise.json", holdings, self._reporter, lambda: self._inbox.heard.call
            )
            say_standing = promise_store.say_standing
            worker = PlanWorker(
                job,
                machine,
                plane,
                shards,
                holdings,
                checkpointer,
                self._reporter,
                uplink,
                say_standing,
                profile.memory_bytes,
                signer,
                profile.host_bytes,
            )
            ahead_fetch = AheadFetch(
                job,
                plane,
                holdings,
                self._reporter,
                lambda: self._inbox.plan,
                spare,
                giver.serve,
                worker.fetch_files,
            )
            await worker.listen()
            plan_loop = PlanLoop(self._inbox, worker, promise_store, holdings, checkpointer, self._reporter)
            self._plan_loop = plan_loop
            snapshots.when_added(say_standing)
            contribution = self._contribution(admission)
            self._inbox.when_kept(lambda step, _: contribution.kept(step))
            self._reporter.say("idle", availability(survey, profile))
            self._serving = True
            background = [
                tasks.create_task(publisher.refresh()),
                tasks.create_task(publisher.measure(self._inbox.rounds, self._reporter)),
                tasks.create_task(ahead_fetch.run(self._inbox.comings)),
                tasks.create_task(self._reporter.run(control)),
                tasks.create_task(plane.watch()),
                tasks.create_task(self._prepare(worker)),
                tasks.create_task(contribution.run(partial(asyncio.sleep, self._timeouts.contribution_pause))),
                tasks.create_task(watch_for_wake(own_addresses, partial(_anew, control, publisher))),
            ]
            say_standing()
            self._profile = profile
            await control.publish(PRESENCE, self._presence())
            following = tasks.create_task(plan_loop.follow())
            background.append(tasks.create_task(watch.run(plan_loop, control.connected.is_set, lambda: caps.up.total)))
            leaving = tasks.create_task(self._drain(plan_loop, control, caps.up))
            sent_away = tasks.create_task(self._inbox.sent_away.wait())
            try:
                await asyncio.wait({following, leaving, sent_away}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                following.cancel()
                leaving.cancel()
                sent_away.cancel()
                await asyncio.wait({following})
                await plan_loop.save()
            await contribution.refresh()
            if contribution.said is not None:
                words = f"{self._display.contribution} The coordinator has signed that"
                self._display.note(f"{words}: `dtfm-node contribution` shows it.")
            if self._inbox.sent_away.is_set():
                self._display.note(SENT_AWAY)
            for task in background:
                task.cancel()
        await self._reporter.send(control)

    async def _prepare(self, worker: PlanWorker) -> None:
        """Have `worker` prepare for plans once that does not disturb measurements of this node's links."""
        await self._inbox.until_calm(self._timeouts.calm, MonotonicClock())
        await worker.prepare()

    def _spare_memory(self, job: ResolvedJob, profile: Profile) -> float:
        """Return the bytes of memory that this machine offers and the newest plan does not ask for."""
        plan = self._inbox.plan
        if plan is None:
            return 0.0
        return spare_memory(job, plan, self._me, profile.memory_bytes, profile.host_bytes)

    def _contribution(self, admission: Admission) -> ContributionKeeper:
        ask = partial(DeskClient(self._invite, self._identity, admission).contribution, self._timeouts.contribution)

        def told(words: str) -> None:
            self._display.contribution = words

        return ContributionKeeper(self._folder, self._me, self._invite.swarm, admission.coordinators, ask, told)

    def _presence(self) -> Presence:
        profile = self._profile
        if profile is not None and len(profile.model_dump_json()) > PRESENCE.limit // 2:
            profile = None  # there is no room for it: it is looked up
        return Presence(
            online=True, session=self._session, name=self._options.name, version=product_version(), profile=profile
        )

    def _waits(self, why: str) -> None:
        """Say why this node does not begin yet."""
        self._reporter.pause(why)
        self._reporter.save()

    def _unless_paused(self, handler: Handler) -> Handler:
        """Return a handler that sends nothing while this node pauses."""

        async def answer(stream: Stream) -> None:
            if self._plan_loop is not None and self._plan_loop.is_paused:
                raise Refused("asked of a node that pauses")
            await handler(stream)

        return answer

    def _disk_budget(self) -> DiskBudget:
        held = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        return DiskBudget(most_disk(self._options.disk_gb, shutil.disk_usage(self._folder).free, held))

    def leave(self) -> bool:
        """Ask to leave as soon as the others can do without this node; whether there is anything to wait for."""
        self._leave.set()
        return self._serving

    async def _drain(self, plan_loop: PlanLoop, control: ControlPlane, up: RateCap) -> None:
        """Once this node is asked to leave, return when waiting for the others has no more use."""
        await self._leave.wait()
        self._display.note("leaving: waiting until others have what this node holds (Ctrl+C again: at once)")
        plan_loop.leave()
        clock = asyncio.get_running_loop().time
        draining = Draining(self._timeouts.leave, self._timeouts.leave_alone, clock(), up.total)
        while not draining.is_vain(clock()):
            await asyncio.sleep(ALONE_LOOK_SECONDS)
            draining = draining.looked(clock(), up.total, works=plan_loop.works, connected=control.connected.is_set())

    async def _surveyed(self, machine: Runtime) -> JobSurvey:
        """Return what the job asks for.

        Raises:
            UserError: it cannot run here.
        """
        job = await self._inbox.job()
        loading = machine.compute(load_update, job.training, machine.device)
        survey = await self._surveyor(job)  # in a process of its own, as a rule
        await loading
        return survey

    async def _measured(self, machine: Runtime, survey: JobSurvey) -> Profile:
        """Return what this machine offers, all but where it is reached.

        Raises:
            UserError: the job cannot run here.
        """
        job, memory = await self._inbox.job(), self._options.memory_gb
        self._display.note(job_in_words(job, self._inbox.plan))
        self._reporter.say("measuring", f"measuring {describe(machine.device)}")
        return await measure_profile(job, survey, machine, memory, self._session, self._caps)

    def _default_listen(self) -> str:
        """Loopback for a swarm on this machine alone, else every interface."""
        local = all("/127.0.0.1/" in address for address in self._invite.dht)
        return "127.0.0.1" if local else "0.0.0.0"


async def _anew(control: ControlPlane, publisher: Publisher) -> None:
    """Make what may lead nowhere now anew: the session with the broker, and what others know of the way here."""
    control.reconnect()
    await publisher.moved()
