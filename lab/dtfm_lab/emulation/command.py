"""The command `dtfm-coordinator lab`: a program run on the hosts of an emulated network."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtfm_lab.emulation.accuracy import Gauge, Unmeasured, pairs_to_try
from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.wiring import Wiring
from dtfm_lab.emulation.world_script import WorldScript
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import late_actions
from dtfm_protocol.process.child_processes import end_with_parent
from dtfm_protocol.process.logs import log
from dtfm_protocol.view.view import View

LAB_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class LabOptions:
    """The options of `dtfm-coordinator lab`: what to run, and where."""

    view: Path
    command: tuple[str, ...]
    on: str | None = None
    """Id of the node on whose host the command runs; None: the first one's."""
    everywhere: bool = False
    """Whether the command runs on every host."""
    scale: float = 1.0
    """Factor by which all rates of the view are multiplied."""
    loss: float = 0.0
    """Share of packets that vanish, 0 to 1."""
    queue_ms: float = 200.0
    """Milliseconds of a link's rate that wait for it before more is dropped."""
    script: Path | None = None
    """A file of events by which the world changes (`WorldScript`)."""


class CommandEnded(Exception):
    """The end of the command with a code that is not 0."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


async def run(question: LabOptions) -> None:
    """Make the world, measure how true it is, and run the command in it.

    Raises:
        UserError: this machine or the view does not do, or the network has broken down meanwhile; also in a group.
        CommandEnded: the command failed.
    """
    view = View.load(question.view)
    script = WorldScript.load(question.script, view) if question.script is not None else WorldScript()
    if question.on is not None and question.on not in view.ids:
        raise UserError(f"--on {question.on}: the view has no such node; it has {', '.join(view.ids[:8])} ...")
    if shutil.which(question.command[0]) is None:
        raise UserError(f"there is no program {question.command[0]!r}: what follows -- is one, and its arguments")
    wiring = Wiring.of(view, scale=question.scale, loss=question.loss, queue_ms=question.queue_ms)
    chosen = range(len(view.ids)) if question.everywhere else [view.ids.index(question.on or view.ids[0])]
    async with EmulatedNetwork.running(wiring) as lab:
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(lab.watch())]
            await _say_accuracy(lab, wiring, view)
            for number, node in enumerate(view.ids):
                log.info("%s: %s, `%s COMMAND`", node, lab.address(number), " ".join(lab.within(number)))
            beside.append(tasks.create_task(_change(lab, script, view, wiring)))
            with tempfile.TemporaryDirectory(prefix="dtfm-lab-") as counts_of_programs:
                kept = Path(counts_of_programs)
                codes = await _run_all(lab, view, question.command, chosen, kept)
                pace = late_actions.kept_in(kept)
            for task in beside:
                task.cancel()
        counts = await lab.counts()
        carried, dropped = sum(counts.bytes.values()), sum(counts.dropped.values())
        log.info(
            "carried %.1f MB; dropped %d packets; %.2f ms late in the mean, %.1f ms at most",
            carried / 1e6, dropped, counts.late_mean * 1e3, counts.late_most * 1e3,
        )  # fmt: skip
    if pace.actions:
        log.info("%s", pace.text)
    if any(codes):
        raise CommandEnded(next(code for code in codes if code))


async def _say_accuracy(lab: EmulatedNetwork, wiring: Wiring, view: View) -> None:
    """Print what the lab is asked to be, and what programs on its hosts find."""
    gauge = Gauge(lab)
    try:
        for here, there in pairs_to_try(wiring):
            try:
                said = (await gauge.pair(here, there)).text(wiring)
            except Unmeasured as error:
                said = f"not measured: {error}"
            log.info("%s -> %s: %s", view.ids[here], view.ids[there], said)
    finally:
        await gauge.close()


async def _change(lab: EmulatedNetwork, script: WorldScript, view: View, wiring: Wiring) -> None:
    """Change the world when the script says."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for at in script.changes():
        await asyncio.sleep(max(0.0, begun + at - loop.time()))
        await lab.change(script.at(at, view, wiring))


async def _run_all(
    lab: EmulatedNetwork, view: View, command: Sequence[str], chosen: Sequence[int], counts: Path
) -> list[int]:
    """Run `command` on the chosen hosts; return the exit codes, once all have ended. Paced programs keep their `counts`
    of late actions in that folder."""
    addresses = {node: lab.address(number) for number, node in enumerate(view.ids)}
    others, hosts = {f"address:{node}": address for node, address in addresses.items()}, json.dumps(addresses)
    processes = []
    try:
        for number in chosen:
            own = {"node": view.ids[number], "address": lab.address(number), "number": str(number)}
            environment = os.environ | {
                "DTFM_LAB_NODE": own["node"],
                "DTFM_LAB_ADDRESS": own["address"],
                "DTFM_LAB_HOSTS": hosts,
                late_actions.FOLDER: str(counts),
            }
            words = [_filled(word, own | others) for word in command]
            process = await asyncio.create_subprocess_exec(
                *lab.within(number), *words, env=environment, preexec_fn=end_with_parent(signal.SIGTERM)
            )
            processes.append(process)
        return [await process.wait() for process in processes]
    finally:
        # Ctrl+C in a terminal has reached them, too: they are given time for their own goodbyes.
        for process in processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                async with asyncio.timeout(LAB_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def _filled(word: str, own: dict[str, str]) -> str:
    """Replace {node}, {address}, {number} and each {address:NODE} in `word`."""
    for name, value in own.items():
        word = word.replace("{" + name + "}", value)
    return word
