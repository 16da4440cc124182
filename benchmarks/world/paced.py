"""A world shrunk until it fits on one machine, and a swarm in it.

The model and the links shrink together, so that communication over compute stays what it is: a message of the paper's
model (hidden 2048, sequence 2048, fp16) has 512 times the bytes of one here (hidden 64, sequence 64, fp32), and so has
a layer's gradient; rates are divided by as much, delays stay. Compute is paced: peers' actions take the time of the
devices that they stand for. Where even that is too much for the machine, all times are stretched by a factor.
"""

import asyncio
import contextlib
import json
import statistics
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.swarm import Swarm

from dtfm_coordinator.allocator.job_demand import workload
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.wiring import Wiring
from dtfm_lab.networks.node_groups import V100_FLOPS
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process import late_actions
from dtfm_protocol.view.view import LayerSeconds, View

SHRINK = 512
"""Bytes of the paper's messages and gradients over those here."""
V100_LAYER_SECONDS = 7.22e-3
"""Forward of one of the paper's layers on one sequence, as fitted to the authors' measurements (results/v100.md)."""
HUB_SECONDS, HUB_RATE = 5e-3, 125e6
"""The coordinator's machine: one-way delay and bytes a second to and from everybody. No tensor passes through it."""
FAST = 20.0
"""While peers hand state over to go to another plan, links are so many times faster: that is not what is measured."""
HYSTART = Path("/sys/module/tcp_cubic/parameters/hystart")
"""Whether Cubic stops opening its window when packets come unevenly, as behind a queue that grows. Where others use the
machine's processors too, the emulator's packets do, and windows stay shut on links that are free. It is the machine's
setting, not a host's."""
HYSTART_BEFORE = Path("/run/dtfm-hystart-before")
"""Where its value is kept meanwhile; gone when the machine is started anew, as is the setting."""
SPAN_SECONDS, FEWEST_STEPS = 45.0, 3
"""Steps are measured for so long where all that are asked for take longer, but at least so many."""
LAYERS = 24
JOB = """
name = "world"
[model]
{model}
[data]
text = "cpython"
tokenizer = "bytes"
[training]
steps = 100000
global_batch = {micro_batches}
micro_batch = 1
sequence_length = 64
learning_rate = 1e-4
seed = 1
{training}
[plan]
schedule = "1f1b"
[checkpoint]
every = 0
shadow = {shadow}
"""
MODEL = """
architecture = "llama"
hidden_size = 64
intermediate_size = 172
num_hidden_layers = {layers}
num_attention_heads = 4
num_key_value_heads = 4
tie_word_embeddings = false
"""


@dataclass(frozen=True)
class World:
    """What is emulated."""

    name: str
    view: View
    """As it is outside: the real links, and the real devices' FLOP/s."""
    micro_batches: int = 16
    layers: int = LAYERS
    shrink: float = SHRINK
    """By what bytes are divided."""
    stretch: float = 1.0
    """By what all times are multiplied."""
    base: Path | None = None
    """Folder of the model with whose weights it begins; None: they are drawn."""
    training: str = ""
    """What `[training]` says besides."""
    shadow: int = 1_000_000
    """Steps between copies of a lone stage's state."""

    @property
    def small(self) -> View:
        """As it is here, with what the allocator needs to know: rates in Gbit/s, seconds of a layer."""
        rates, view = 1 / (self.shrink * self.stretch), self.view
        nodes = tuple(
            node.model_copy(
                update={
                    "flops": self.pace(number),
                    "memory_bytes": 1e9,
                    "up_gbps": None if node.up_gbps is None else node.up_gbps * rates,
                    "down_gbps": None if node.down_gbps is None else node.down_gbps * rates,
                    "layer_seconds": self.layer_seconds(number),
                }
            )
            for number, node in enumerate(view.nodes)
        )
        return View(nodes=nodes, latency_ms=view.latency_ms * self.stretch, bandwidth_gbps=view.bandwidth_gbps * rates)

    def layer_seconds(self, number: int) -> LayerSeconds:
        """Of a device that stands for node `number`."""
        flops = self.view.nodes[number].flops_in("bf16") or V100_FLOPS
        forward = V100_LAYER_SECONDS * self.stretch * V100_FLOPS / flops
        return LayerSeconds(forward=forward, backward=2 * forward, weight=forward, optimizer=0.0)

    def pace(self, number: int) -> float:
        """FLOP/s at which node `number` computes here."""
        flops = self.work.demand.layer_flops
        assert flops is not None
        return flops / self.layer_seconds(number).forward

    @property
    def job_text(self) -> str:
        """The job file."""
        model = MODEL.format(layers=self.layers) if self.base is None else f"path = {json.dumps(str(self.base))}"
        values = {"micro_batches": self.micro_batches, "training": self.training, "shadow": self.shadow}
        return JOB.format(model=model, **values)

    @property
    def work(self) -> Workload:
        """The job as the allocator sees it."""
        import tomllib

        return workload(Job.read(tomllib.loads(self.job_text), "the world's job"))

    @property
    def said(self) -> str:
        """How it was made, for tables."""
        stretched = f", all times x {self.stretch:g}" if self.stretch != 1 else ""
        return (
            f"{self.name}: {len(self.view.nodes)} paced peers, {self.layers} layers, {self.micro_batches} micro-batches"
            f"; bytes / {self.shrink:g}{stretched}"
        )

    def wiring(self) -> Wiring:
        """Its links, and those of the coordinator's host, which is the last one."""
        wiring, count = Wiring.of(self.small), len(self.view.nodes)
        return wiring.model_copy(
            update={
                "delay": [[*row, HUB_SECONDS] for row in wiring.delay] + [[HUB_SECONDS] * (count + 1)],
                "rate": [[*row, HUB_RATE] for row in wiring.rate] + [[HUB_RATE] * (count + 1)],
                "up": [*wiring.up, None],
                "down": [*wiring.down, None],
            }
        )


@dataclass(frozen=True)
class Measured:
    """Steps under one plan."""

    plan: Plan
    """With peers by the view's ids, and the cost that the coordinator predicted on the links that were probed."""
    seconds: tuple[float, ...]
    late: float
    """Seconds by which the emulated network was late with a packet, in the mean: what it could not keep up with."""

    @property
    def median(self) -> float:
        """Of the steps."""
        return statistics.median(self.seconds)


class Running:
    """A swarm that trains in a world. Create it with `running`."""

    def __init__(self, world: World, lab: EmulatedNetwork, swarm: Swarm) -> None:
        self.world, self.lab, self.swarm = world, lab, swarm
        self.peers: dict[str, str] = {}
        """Peer id of each node of the view."""
        self._plan_file = swarm.folder / "layout.json"
        self._counts = swarm.folder / "late-actions"
        self._counts.mkdir()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, world: World, *options: str, forced: Plan | None = None, trains: bool = True
    ) -> AsyncIterator["Running"]:
        """Start lab, coordinator and peers.

        Args:
            options: further ones of `serve`.
            forced: the first plan, by the view's ids; the coordinator's own where it is None.
            trains: whether to wait until the first step is done.
        """
        with without_hystart():
            async with EmulatedNetwork.running(world.wiring()) as lab, Swarm.running() as swarm:
                running = cls(world, lab, swarm)
                await running._start(options, forced)
                if trains:
                    await swarm.until(lambda: swarm.step >= 1, "the first step is done", 3600)
                yield running
                print(f"{world.name}: {late_actions.kept_in(running._counts).text}", flush=True)

    async def _start(self, options: Sequence[str], forced: Plan | None) -> None:
        swarm, count = self.swarm, len(self.world.view.nodes)
        job = swarm.folder / "job.toml"
        job.write_text(self.world.job_text, encoding="utf-8")
        swarm.coordinator.within = self.lab.within(count)
        if forced is not None:
            # Peer ids are not known yet: the first plan only names as many.
            self._plan_file.write_text(_layout(forced), encoding="utf-8")
            options = ("--plan", str(self._plan_file), *options)
        await swarm.serve(job, "--announce", self.lab.address(count), "--min-nodes", count, *options, listen="0.0.0.0")

        async def join(number: int, node: str) -> None:
            daemon = await swarm.join(
                "--pace", f"{self.world.pace(number) / 1e9:.9f}", within=self.lab.within(number),
                environment={late_actions.FOLDER: str(self._counts)},
            )  # fmt: skip
            await swarm.until(lambda: swarm.peer_of(daemon), f"{node} has joined", 600)
            self.peers[node] = swarm.peer_of(daemon)

        async with asyncio.TaskGroup() as joining:
            for number, node in enumerate(self.world.view.ids):
                joining.create_task(join(number, node))

    @property
    def phase(self) -> str:
        """What the coordinator says that it does."""
        path = self.swarm.coordinator.folder / "status.json"
        return str(json.loads(path.read_text())["phase"]) if path.exists() else ""

    @property
    def probed(self) -> View:
        """The links as the swarm has measured them, in the order of the world's nodes, with their ids."""
        view = View.load(self.swarm.coordinator.folder / "view.json").part([self.peers[n] for n in self.world.view.ids])
        nodes = tuple(
            node.model_copy(update={"id": name, "region": self.world.view.nodes[number].region})
            for number, (node, name) in enumerate(zip(view.nodes, self.world.view.ids, strict=True))
        )
        return View(nodes=nodes, latency_ms=view.latency_ms, bandwidth_gbps=view.bandwidth_gbps)

    async def measure(self, plan: Plan, steps: int, warm: int = 2) -> Measured:
        """Have the swarm train under `plan`, whose peers go by the view's ids; what its steps take.

        Args:
            steps: that are counted; fewer if they are slow.
            warm: steps that are not counted: new connections open their windows in them.
        """
        swarm = self.swarm
        before = swarm.layout()["version"]
        await self.lab.change(_faster(self.world.wiring(), FAST))
        temporary = self._plan_file.with_suffix(".new")
        temporary.write_text(_layout(plan.renamed(self.peers)), encoding="utf-8")
        temporary.replace(self._plan_file)
        await swarm.until(lambda: swarm.layout()["version"] > before, "the plan is taken up", 300)
        await swarm.until(lambda: self._began() is not None, "the plan has begun", 600)
        await self.lab.change(self.world.wiring())
        return await self.watch(steps, warm)

    async def watch(self, steps: int, warm: int = 0) -> Measured:
        """What the next steps under the plan in force take."""
        swarm = self.swarm
        first = swarm.step + 1 + warm  # the one under way began on other links
        before = await self.lab.counts()

        def counted() -> list[dict[str, Any]]:
            return [row for row in swarm.rows() if first < row["step"] <= first + steps]

        def enough() -> bool:
            rows = counted()
            spent = sum(row["seconds"] for row in rows)
            return len(rows) >= steps or (len(rows) >= FEWEST_STEPS and spent >= SPAN_SECONDS)

        await swarm.until(enough, f"{steps} steps are measured", 1800)
        rows = counted()
        names = {peer: node for node, peer in self.peers.items()}
        plan = Plan.model_validate(swarm.layout())
        late = (await self.lab.counts()).late_since(before)
        return Measured(plan.renamed(names), tuple(float(row["seconds"]) for row in rows), late)

    def _began(self) -> dict[str, Any] | None:
        """The first step under the plan in force, once it is recorded."""
        version = self.swarm.layout()["version"]
        events = [event for event in self.swarm.events() if event.plan == version]
        return next((row for row in self.swarm.rows() if events and row["step"] > events[-1].step), None)


def prediction(world: World, view: View, plan: Plan) -> float:
    """Seconds of a step of `plan` on `view`."""
    return predict(view, world.work, plan).cost.total


def on_true_links(world: World, plan: Plan) -> float:
    """Seconds of a step that the cost model expects on the links as they were asked for."""
    return prediction(world, world.small, plan)


@contextlib.contextmanager
def without_hystart() -> Iterator[None]:
    """Turn it off until the block ends; nothing happens where it cannot be.

    What it was before is written down until then: where a run was killed, the next one finds and restores it.
    """
    try:
        before = HYSTART_BEFORE.read_text() if HYSTART_BEFORE.exists() else HYSTART.read_text()
        HYSTART_BEFORE.write_text(before)
        HYSTART.write_text("0")
    except OSError:
        yield
        return
    try:
        yield
    finally:
        HYSTART.write_text(before)
        HYSTART_BEFORE.unlink(missing_ok=True)


def _layout(plan: Plan) -> str:
    kept = {"stages", "routes", "schedule", "recompute", "pacing", "parts", "trees"}
    return json.dumps(plan.model_dump(mode="json", include=kept))


def _faster(wiring: Wiring, factor: float) -> Wiring:
    """The same network with higher rates."""

    def times(rate: float | None) -> float | None:
        return None if rate is None else rate * factor

    return wiring.model_copy(
        update={
            "rate": [[times(rate) for rate in row] for row in wiring.rate],
            "up": list(map(times, wiring.up)),
            "down": list(map(times, wiring.down)),
        }
    )
