"""Giving of the state in training ahead of the plan that needs it: parameter after parameter, and of those that a peer
has the gradients that lead on, while training goes on."""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from functools import partial
from threading import Lock
from typing import NamedTuple, Self

from dtfm_node.engine.runtime import Compute
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.checkpoint.shard import tensor_bytes
from dtfm_protocol.checkpoint.transfers import PIECE_LIMIT, Parcel, send_file
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import Bytes, Stream, write_message

LEAST_WAITING = 64 << 20
"""Bytes of gradients that may wait to be sent to one peer, at least."""
STEPS_WAITING = 2
"""Steps whose gradients may wait, of all that it wants, where that is more. A link on which more would wait does not
carry what training brings: what its peer has would only grow older."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at whether a feed is over, while nothing happens."""


# -- what is given next (pure) ------------------------------------------------------------------------------------


class Updated(NamedTuple):
    """Event: a step was applied."""

    step: int


class HasRoom(NamedTuple):
    """Event: something more may be sent."""


class GiveState(NamedTuple):
    """Action: send these parameters, as they are now."""

    names: tuple[str, ...]


class GiveGradient(NamedTuple):
    """Action: send a parameter's gradient, which led to a step."""

    step: int
    name: str


class KeepGradients(NamedTuple):
    """Action: keep these gradients of the step that was applied until they are sent."""

    names: tuple[str, ...]


class GiveUp(NamedTuple):
    """Action: end, as more comes than goes."""


GivingAction = GiveState | GiveGradient | KeepGradients | GiveUp


class GivingOrder(NamedTuple):
    """Order in which one peer is given parameters: gradients of those that it has go first, so that it has them as of
    the newest step; no more are given where these take all the time."""

    sizes: dict[str, int]
    """Number of elements of each parameter that is wanted."""
    unsent: tuple[str, ...]
    given: tuple[str, ...] = ()
    due: tuple[tuple[int, str], ...] = ()
    """Gradients to be sent, by step and name, oldest first."""

    @classmethod
    def of(cls, sizes: dict[str, int]) -> Self:
        """Return the order before anything is given."""
        return cls(sizes, tuple(sorted(sizes)))

    def on(self, event: Updated | HasRoom) -> tuple[Self, tuple[GivingAction, ...]]:
        """Return the order after `event`, and the actions to carry out."""
        if isinstance(event, Updated):
            due = (*self.due, *((event.step, name) for name in self.given))
            most = max(LEAST_WAITING, STEPS_WAITING * 4 * sum(self.sizes.values()))
            if 4 * sum(self.sizes[name] for _, name in due) > most:
                return self._replace(unsent=(), given=(), due=()), (GiveUp(),)
            return self._replace(due=due), (KeepGradients(self.given),)
        if self.due:
            return self._replace(due=self.due[1:]), (GiveGradient(*self.due[0]),)
        count = size = 0
        while count < len(self.unsent) and size < PIECE_LIMIT // 4:
            size += self.sizes[self.unsent[count]]
            count += 1
        names, rest = self.unsent[:count], self.unsent[count:]
        return self._replace(unsent=rest, given=(*self.given, *names)), (GiveState(names),) if names else ()

    @property
    def left(self) -> int:
        """Number of parameters and gradients that are to be sent now."""
        return len(self.unsent) + len(self.due)


# -- the shell ----------------------------------------------------------------------------------------------------


class _Giving:
    """What one peer is given of a stage's state. An update and a copy of the state never come in between each other, as
    both are compute."""

    def __init__(self, stage: TrainingStage, names: Collection[str], changed: Callable[[], None]) -> None:
        """Nothing is given yet; `changed` is called, on the compute thread, when there is more to give."""
        self._stage, self._changed, self._lock = stage, changed, Lock()
        self._order = GivingOrder.of({name: stage.parameters[name].numel() for name in names})
        self._gradients: dict[tuple[int, str], tuple[float, Bytes]] = {}
        self.is_lost = False
        """Whether more has come than went, or the peer has asked anew."""

    def updated(self, step: int, grad_norm: float, learned: bool) -> None:
        """Keep what leads on from what was given; compute."""
        with self._lock:
            if self.is_lost:
                return
            self._order, (action,) = self._order.on(Updated(step))
            if isinstance(action, GiveUp):
                self.is_lost = True
                self._gradients.clear()
            elif isinstance(action, KeepGradients):
                for name in action.names:
                    gradient = self._stage.parameters[name].grad if learned else None
                    data = b"" if gradient is None else tensor_bytes(gradient.detach().clone())
                    self._gradients[step, name] = grad_norm, data
        self._changed()

    def end(self) -> None:
        """Keep nothing any more: the peer has asked anew."""
        with self._lock:
            self.is_lost = True
            self._gradients.clear()
            self._order = self._order._replace(unsent=(), given=(), due=())

    async def next(self, compute: Compute) -> list[tuple[Parcel, Bytes]]:
        """Return what is to be sent next; nothing where the peer has all of now."""
        with self._lock:
            if self._order.due or not self._order.unsent:
                return self._take()
        found: list[tuple[Parcel, Bytes]] = await compute(self._take_on_compute)
        return found

    def _take_on_compute(self) -> list[tuple[Parcel, Bytes]]:
        with self._lock:
            return self._take() if self._stage.mark is not None else []

    def _take(self) -> list[tuple[Parcel, Bytes]]:
        self._order, actions = self._order.on(HasRoom())
        found = list[tuple[Parcel, Bytes]]()
        for action in actions:
            if isinstance(action, GiveGradient):
                norm, data = self._gradients.pop((action.step, action.name))
                left = self._order.left
                found.append(
                    (Parcel(name=action.name, step=action.step, grad_norm=norm, size=len(data), left=left), data)
                )
            elif isinstance(action, GiveState):
                found += [self._state(name, self._order.left + more) for more, name in _counted_down(action.names)]
        return found

    def _state(self, name: str, left: int) -> tuple[Parcel, Bytes]:
        stage = self._stage
        assert stage.mark is not None, "a state that is none is not given"
        tensors = state_tensors({name: stage.parameters[name]}, stage.optimizer)
        data = b"".join(bytes(tensor_bytes(tensor)) for _, tensor in tensors)
        return Parcel(name=name, step=stage.mark.step, size=len(data), left=left), data


def _counted_down(names: Collection[str]) -> list[tuple[int, str]]:
    """Return names, each with the number of those that follow."""
    return [(len(names) - number, name) for number, name in enumerate(names, 1)]


class AheadGiver:
    """Giver of this node's state in training to peers that are to take parts of it over, as a layout to come says.

    Args:
        spare: returns the bytes of memory that may be taken for it.
        layout_seconds: for which a peer may be ahead of the layout that it has heard of: see `Timeouts.parcel`.
    """

    def __init__(
        self,
        holdings: Inventory,
        uplink: UplinkPacer,
        compute: Compute,
        spare: Callable[[], float],
        layout_seconds: float = TIMEOUTS.parcel,
    ) -> None:
        self._holdings, self._uplink, self._compute, self._spare = holdings, uplink, compute, spare
        self._layout_seconds = layout_seconds
        self._layout: Plan | None = None
        self._heard = asyncio.Condition()
        self._givings: dict[str, tuple[_Giving, Stream, int]] = {}
        """By peer: what it is given, on which stream, and the bytes that may wait for it at most."""

    async def serve(self, layout: Plan) -> None:
        """Give, from now on, to the peers of the layout that is to come."""
        async with self._heard:
            self._layout = layout
            self._heard.notify_all()

    def _is_for(self, peer: str) -> bool:
        return self._layout is not None and self._layout.stage_of(peer) is not None

    async def give(self, stream: Stream, names: tuple[str, ...]) -> None:
        """Give a peer parameters by name, until another plan is trained here, or the peer has enough.

        Raises:
            Refused: it is not to have them, or there is no memory for that.
            StreamClosed: it has gone.
        """
        peer, loop = stream.peer, asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._layout_seconds), self._heard:  # it reaches peers one by one
                await self._heard.wait_for(lambda: self._is_for(peer))
        live = self._holdings.live
        if live is None or not self._is_for(peer):
            raise Refused("a request for parts of a state in training, which no layout to come gives to its peer")
        if len(set(names)) < len(names) or not set(names) <= live.parameters.keys():
            raise Refused("a request for parts of a state in training that are not here")
        waiting = max(LEAST_WAITING, STEPS_WAITING * 4 * sum(live.parameters[name].numel() for name in names))
        while before := self._givings.pop(peer, None):
            before[0].end()
            await before[1].close()  # a peer that does not read would keep it for ever
        if waiting + sum(others for _, _, others in self._givings.values()) > self._spare():
            raise Refused("a request for parts of a state in training, for which there is no memory")
        changed = asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        giving = _Giving(live, names, tell)
        own = self._givings[peer] = giving, stream, waiting
        live.after_update.append(giving.updated)
        try:
            while live is self._holdings.live and self._givings.get(peer) is own and not giving.is_lost:
                changed.clear()
                parcels = await giving.next(self._compute)
                for parcel, data in parcels:
                    await self._uplink.idle(peer)
                    await write_message(stream, parcel)
                    await send_file(stream, data, partial(self._uplink.idle, peer))
                if not parcels:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), LOOK_SECONDS)
            if giving.is_lost and self._givings.get(peer) is own:
                log.info("%s is given nothing more ahead: its link does not carry what each step brings", short(peer))
        finally:
            live.after_update.remove(giving.updated)
            if self._givings.get(peer) is own:
                del self._givings[peer]
