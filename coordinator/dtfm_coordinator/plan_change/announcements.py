"""What peers are told of plans: the plan that is offered, and the epoch, one after the other as it was decided."""

import asyncio
from collections.abc import Awaitable, Callable

from dtfm_coordinator.membership.change_signal import ChangeSignal
from dtfm_coordinator.plan_change.plan_change_events import Announced
from dtfm_protocol.control.messages import EPOCH, PLAN, Epoch, Topic
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.schema import Schema

Publisher = Callable[[Topic, Schema], Awaitable[None]]


class Announcements:
    """A queue of what is to be said; `run` says it."""

    def __init__(self, publish: Publisher, signal: ChangeSignal, said: Announced) -> None:
        """`said`: the epoch that an earlier life has said; `signal`: told when something has been said."""
        self._publish, self._signal = publish, signal
        self.said = said
        """The epoch that was said last."""
        self.proposed = 0
        """The version of the plan that was offered last."""
        self._queue: asyncio.Queue[Plan | Announced] = asyncio.Queue()

    def put(self, what: Plan | Announced) -> None:
        """Have it said after all that was put before."""
        self._queue.put_nowait(what)

    async def run(self) -> None:
        """Publish, until cancelled."""
        while True:
            match await self._queue.get():
                case Plan() as plan:
                    await self._publish(PLAN, plan)
                    self.proposed = plan.version
                case Announced() as epoch:
                    await self._publish(EPOCH, Epoch(**epoch._asdict()))
                    self.said = epoch
            self._signal.notify()
