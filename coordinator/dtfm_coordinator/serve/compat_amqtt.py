"""Patch of amqtt 0.12, whose broker drops a client that connects while another one subscribes.

No report was found upstream. As of amqtt 0.12.1, `Broker._run_broadcast` and `Broker._handle_client_session`
(amqtt/broker.py) await inside loops over `self._subscriptions`, a plain dict that other tasks change meanwhile, which
ends the loop with a RuntimeError.
"""

from collections.abc import Iterator
from typing import Any

from amqtt.broker import Broker

from dtfm_protocol.process.compat.known_versions import is_known

VERSIONS = ">=0.11.3,<0.13"


class SteadyDict(dict[str, Any]):
    """Dict that may change while it is iterated over: the iteration sees what was in it at the beginning."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def items(self) -> Any:
        """Return the items as they are now."""
        return list(super().items())


def steady_subscriptions(broker: Broker) -> None:
    """Let a broker's subscriptions change while it goes through them. Call it before the broker starts."""
    if is_known("amqtt", VERSIONS):
        broker._subscriptions = SteadyDict()
