"""Service of a job: prepares it, and serves it under one key after the other, as the owner replaces them."""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dtfm_coordinator.allocator.allocate import compile_now
from dtfm_coordinator.allocator.job_demand import kept_requirements
from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.serve.appointment import check_appointed
from dtfm_coordinator.serve.beginning import Beginning
from dtfm_coordinator.serve.coordinator_run import CoordinatorRun, ServedJob
from dtfm_coordinator.serve.endpoints import Endpoints
from dtfm_coordinator.serve.job_edits import remember, take_up_edits
from dtfm_coordinator.serve.own_key import OwnKey
from dtfm_coordinator.serve.serve_options import ServeOptions
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.job.amendment import KEYS
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.process.work_apart import run_apart


class Coordinator:
    """Coordinator of one served job."""

    def __init__(self, job: Job, folder: Path, options: ServeOptions) -> None:
        """Load what the state folder has, and replace the key where the owner has asked for that.

        Raises:
            UserError: the forced plan, the standby's invite or the state folder cannot be used.
        """
        self._job, self._folder, self._options = job, folder, options
        self._forced = Plan.load(options.plan) if options.plan else None
        self._joined = Invite.decode(options.standby) if options.standby is not None else None
        """Invite of the swarm for which this coordinator stands by; None: it is the first one itself."""
        self._swarm = _swarm_id(folder) if self._joined is None else self._joined.swarm
        self._key = OwnKey(folder, self._swarm, may_change=self._joined is None)
        if self._joined is not None:
            check_appointed(self._joined, self._key.identity.peer_id)
        if self._key.is_due():
            self._key.replace()

    async def run(self, ready: Callable[[str], None] = lambda _: None, beginning: Beginning | None = None) -> None:
        """Serve until the job is done (with `exit_when_done`) or until cancelled; stand by while another one leads.

        Args:
            ready: called with the invite once nodes can join.
            beginning: tells what is done before this coordinator leads; None: the log alone does.

        Raises:
            UserError: bad job, port taken, broker out of reach, or a run that cannot go on.
        """
        options, folder = self._options, self._folder
        begun = (folder / "plan.json").exists() or bool(LedgerFile(folder).ledger.members)
        say = _teller(beginning, self._swarm)
        job = await run_apart(partial(prepare, self._job, folder, say, alterable=KEYS, keeps_first=begun))
        if self._joined is None:
            (take_up_edits if begun else remember)(self._job, folder)
        demand = await run_apart(partial(kept_requirements, job.config, job.training, folder))
        if self._forced is None:  # before anybody waits for a plan
            await run_apart(partial(compile_now, say))
        planner = Planner(job, demand, self._forced, options.seed)
        ends = Endpoints.choose(folder, options)
        served = ServedJob(self._swarm, job, planner, folder, options, ends, self._job.sharing, self._joined, beginning)
        while await CoordinatorRun(served, self._key).run(ready):
            log.info("This coordinator goes on with its new key, as %s.", self._key.identity.peer_id)


def _teller(beginning: Beginning | None, swarm: str) -> Callable[[str], None]:
    """Return what tells of the work in a sentence, from any thread."""
    if beginning is None:
        return log.info
    beginning.swarm = swarm
    loop = asyncio.get_running_loop()

    def tell(sentence: str) -> None:
        loop.call_soon_threadsafe(lambda: beginning.say(sentence))

    return tell


def _swarm_id(folder: Path) -> str:
    """Return the id of the swarm whose coordinator has this state folder, random at the first start."""
    path = folder / "swarm"
    if not path.exists():
        write_atomically(path, secrets.token_hex(8) + "\n")
    return path.read_text(encoding="ascii").strip()
