"""Executor of a schedule: compute on its own thread, receives posted ahead, sends off that thread."""

import asyncio
import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any, ParamSpec, TypeVar

import torch

from dtfm_node.engine.emulated_speed import least_seconds
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.freed_memory import FreedMemory
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.micro_batches import MicroBatches
from dtfm_node.engine.orders_in_force import OrdersInForce
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.step_messages import (
    StepMessage,
    boundary_messages,
    durations_due,
    evaluation_messages,
    received,
    sent,
    share_of,
)
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import ActionDurations, NewDurations
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Action
from dtfm_protocol.plan.schedule import Kind as ActionKind
from dtfm_protocol.plan.schedule_rules import microseconds
from dtfm_protocol.wire.frames import Key, Kind

AHEAD = 2
"""Number of actions, the present one included, whose input is brought to the device ahead."""
ACTION_KINDS: tuple[ActionKind, ...] = ("forward", "backward", "weight")
"""Kinds in the order of `ActionDurations`."""
_CARRIED: dict[ActionKind, Kind] = {"forward": Kind.ACTIVATION, "backward": Kind.GRADIENT}
"""Kind of message that brings an action its input and takes its output on; a "weight" action has neither."""
_Outbox = asyncio.Queue[tuple[Key, torch.Tensor, Any] | None]
"""Queue of outputs that were computed for one peer, as long as the schedule lets this peer be ahead of it; None ends
it."""

P = ParamSpec("P")
T = TypeVar("T")


class ScheduleExecutor:
    """Executor of one peer's part of steps and evaluations."""

    def __init__(
        self,
        plan: Plan,
        me: str,
        state: TrainingStage,
        batches: Batches,
        micro_batches: MicroBatches,
        exchange: Exchange,
        machine: Runtime,
    ) -> None:
        self.orders = OrdersInForce.of(plan)
        """Orders of the steps that are to come."""
        self._took: dict[ActionKind, list[float]] = {}
        """Seconds of the actions of the newest step, by kind; none where nobody asks for them, or they only ask an
        accelerator for its work."""
        if durations_due(plan) and machine.device.type == "cpu":
            self._took = {kind: [] for kind in ACTION_KINDS[: durations_due(plan)]}
        self._plan, self._state, self._batches, self._micro_batches = plan, state, batches, micro_batches
        self._exchange, self._machine, self._host_copies = exchange, machine, machine.host_copies
        self._me = me
        messages = boundary_messages(plan, me)
        self._inputs = {(one.kind, one.index): one for one in received(messages, me)}
        self._outputs = {(one.kind, one.index): one for one in sent(messages, me)}
        """Messages that take the outputs of actions on, by kind and micro-batch."""
        self._least = least_seconds(state.config, state.training, plan, state.index, machine.pace)
        self._final: list[asyncio.Event] = []
        self._freed = FreedMemory.of_process() if machine.device.type == "cpu" else None
        """What actions free, of this plan alone; None: nothing is to be given back, or it lies on an accelerator."""

    def follow(self, durations: NewDurations) -> None:
        """Compute from the next step on in the orders that come of new durations, as the commit brings them.

        Raises:
            Refused: they are none by which the plan's peers can compute.
        """
        self.orders = self.orders.after(durations)

    @property
    def durations(self) -> ActionDurations:
        """What this peer's actions of the newest step have taken, as it votes that: (), where it has not measured it,
        as on an accelerator."""
        if not self._took or not all(self._took.values()):
            return ()
        return tuple(microseconds(median(seconds), 1) for seconds in self._took.values())

    async def final(self, group: int) -> None:
        """Wait until the gradients of the stage's groups of parameters up to number `group` are final."""
        await self._final[group].wait()

    def begin_step(self) -> None:
        """Begin a step: from now on `final` speaks of its gradients."""
        self._final = [asyncio.Event() for _ in range(self._state.groups.last + 1)]

    async def run_step(self, step: int) -> None:
        """Compute all actions of a step; gradients end up in the state's buckets.

        Raises:
            PeerLost: a peer on a route vanished, or sent what cannot be used; in an exception group.
        """
        loop = asyncio.get_running_loop()

        def finished(group: int) -> None:
            loop.call_soon_threadsafe(self._finish, group)

        await self._machine.compute(self._state.begin_step, finished, self._micro_batches.targets(step))
        actions = self.orders.orders[self._me]
        for seconds in self._took.values():
            seconds.clear()
        async with asyncio.TaskGroup() as tasks:
            outboxes: dict[str, _Outbox] = {}  # one a peer: a slow link holds up nobody else's frames
            coming: dict[int, asyncio.Task[torch.Tensor | None]] = {}
            for place, action in enumerate(actions):
                for ahead in range(place, min(place + AHEAD, len(actions))):
                    if ahead not in coming:
                        coming[ahead] = tasks.create_task(self._input(step, actions[ahead]))
                value = await self._waited(coming.pop(place), step, action)
                coded, made = await self._act(step, action, value)
                if coded is not None:
                    output = self._outputs[_CARRIED[action.kind], action.micro_batch]
                    peer = output.receiver
                    if peer not in outboxes:
                        outboxes[peer] = asyncio.Queue()
                        tasks.create_task(self._send_all(peer, outboxes[peer]))
                    outboxes[peer].put_nowait((output.key(step), coded, made))
            for outbox in outboxes.values():
                outbox.put_nowait(None)

    def _finish(self, group: int) -> None:
        for event in self._final[: group + 1]:
            event.set()

    async def _act(self, step: int, action: Action, value: torch.Tensor | None) -> tuple[torch.Tensor | None, Any]:
        """Compute one action; return its coded output and the event after which it may be read, both None if nobody
        waits."""
        state, index = self._state, action.micro_batch
        least, took = self._least[action.kind], self._took.get(action.kind)
        run = functools.partial(
            self._machine.run,
            "compute",
            f"{action.kind} {index}",
            least=least,
            took=None if took is None else took.append,
            step=step,
            index=index,
        )
        if action.kind == "weight":
            await run(self._freeing(state.weight), index)
            return None, None
        source = self._source(action)
        try:
            if action.kind == "backward":
                return await run(self._freeing(state.backward), index, value)
            inputs, targets, positions = self._micro_batches.of_step(step, index)
            given = inputs if value is None else value
            return await run(self._freeing(state.forward), index, given, targets, positions)
        except Refused as error:
            assert source is not None, "only what others sent is refused"
            raise self._refused(source.sender, f"the input of {action.kind} {index} with {error}") from None

    def _freeing(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return an action that gives back what it has freed, on the thread that computes it: a forward that is
        computed anew in its backward frees most of what it made."""

        @functools.wraps(function)
        def action(*arguments: P.args, **named: P.kwargs) -> T:
            result = function(*arguments, **named)
            if self._freed is not None:
                self._freed.give_back()
            return result

        return action

    def _refused(self, sender: str, text: str) -> PeerLost:
        return self._exchange.refuse(sender, FrameFault.CONTENT, text)

    def _source(self, action: Action) -> StepMessage | None:
        """Return the message that brings the input of an action, None if no other peer sends it."""
        carried = _CARRIED.get(action.kind)
        return None if carried is None else self._inputs.get((carried, action.micro_batch))

    async def _input(self, step: int, action: Action) -> torch.Tensor | None:
        """Return what another peer sends for an action, coded, on the device; None if no other peer sends any."""
        source = self._source(action)
        if source is None:
            return None
        return await self._host_copies.to_device(await self._exchange.receive(source.sender, source.key(step)))

    async def _waited(
        self, coming: asyncio.Task[torch.Tensor | None], step: int, action: Action
    ) -> torch.Tensor | None:
        begun = time.monotonic()
        value = await coming
        if self._source(action) is not None:
            name = f"for {action.kind} {action.micro_batch}"
            self._machine.drawn("wait", name, begun, step=step, index=action.micro_batch)
        return value

    async def _send_all(self, peer: str, outbox: _Outbox) -> None:
        while (one := await outbox.get()) is not None:
            key, coded, made = one
            await self._exchange.send(peer, key, await self._host_copies.to_host(coded, made))

    async def evaluate(self, step: int) -> dict[int, tuple[float, int]]:
        """Run the evaluation's micro-batches that lead through this peer; return, on the last stage, by index the
        summed loss, and how many targets were foretold as the likeliest token.

        Raises:
            PeerLost: a peer on a route vanished, or sent what cannot be used.
        """
        found: dict[int, tuple[float, int]] = {}
        micro_batches = self._batches.evaluation_micro_batches
        messages = evaluation_messages(self._plan, self._me, micro_batches)
        sources = {one.index: one.sender for one in received(messages, self._me)}
        receivers = {one.index: one.receiver for one in sent(messages, self._me)}
        for index in share_of(self._plan, self._me, micro_batches):
            inputs, targets, positions = self._micro_batches.of_evaluation(index)
            value, key = inputs, Key(Kind.EVALUATION, step, index)
            if index in sources:
                value = await self._host_copies.to_device(await self._exchange.receive(sources[index], key))
            batch = self._batches.evaluation_batch_sizes[index]
            try:
                run = functools.partial(self._machine.run, "compute", f"evaluate {index}", step=step, index=index)
                output, made = await run(self._state.evaluate, value, targets, batch, positions)
            except Refused as error:
                raise self._refused(sources[index], f"{key} with {error}") from None
            if isinstance(output, tuple):
                found[index] = output
            else:
                await self._exchange.send(receivers[index], key, await self._host_copies.to_host(output, made))
        return found
