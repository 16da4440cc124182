"""The world of a lab: a view's links, and what else a lab needs to know to make them."""

import math
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from dtfm_lab.emulation.emulated_links import LinkLimits
from dtfm_protocol.errors import UserError
from dtfm_protocol.schema import Schema
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import GBIT, View

MOST_HOSTS = 250
"""Hosts that a lab may have: with more, one forwarding process has long been too slow."""


class Wiring(Schema):
    """The links as the forwarding process is told them: plain numbers, bytes and seconds; null is without limit."""

    delay: list[list[float]]
    """One-way seconds of each ordered pair, as N rows of N."""
    rate: list[list[float | None]]
    """Bytes a second of each ordered pair, as N rows of N; 0 is no connection."""
    up: list[float | None]
    """Bytes a second that each host can send in all."""
    down: list[float | None]
    """Bytes a second that each host can receive in all."""
    loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of packets that vanish."""
    queue_seconds: Annotated[float, Field(gt=0)] = 0.2
    """Seconds of a link's rate that wait for it before more is dropped."""

    @classmethod
    def of(cls, view: View, *, scale: float = 1.0, loss: float = 0.0, queue_ms: float = 200.0) -> Self:
        """Return the links of `view`, all rates times `scale`. What was not measured is estimated, as for plans.

        Raises:
            UserError: more hosts than a lab can have, or a number that is none or without end.
        """
        for option, value in (("scale", scale), ("loss", loss), ("queue-ms", queue_ms)):
            if not math.isfinite(value):
                raise UserError(f"--{option} {value}: give a finite number")
        if len(view.nodes) > MOST_HOSTS:
            raise UserError(f"a lab has {MOST_HOSTS} hosts at most, and the view has {len(view.nodes)}")
        delay, rate = view.alpha(), view.beta() * scale
        np.fill_diagonal(rate, np.inf)

        def limit(gbps: float | None) -> float | None:
            return None if gbps is None else gbps * GBIT * scale

        values = {
            "delay": delay.tolist(),
            "rate": [[None if math.isinf(one) else one for one in row] for row in rate.tolist()],
            "up": [limit(node.up_gbps) for node in view.nodes],
            "down": [limit(node.down_gbps) for node in view.nodes],
            "loss": loss,
            "queue_seconds": queue_ms / 1e3,
        }
        return cls.read(values, "the emulated network")

    def path_rate(self, sender: int, receiver: int) -> float:
        """Return the bytes a second that a pair has if it is alone."""
        limits = (self.rate[sender][receiver], self.up[sender], self.down[receiver])
        return min(_limits(list(limits)))

    def round_trip(self, here: int, there: int) -> float:
        """Return the seconds there and back of a packet without bytes."""
        return self.delay[here][there] + self.delay[there][here]

    def links(self) -> LinkLimits:
        """Return the links as `EmulatedLinks` takes them."""
        return LinkLimits(
            _matrix(self.delay), _matrix(self.rate), _limits(self.up), _limits(self.down), self.loss, self.queue_seconds
        )


def _matrix(rows: list[Any]) -> Matrix:
    return np.array([_limits(row) for row in rows], dtype=np.float64)


def _limits(values: list[float | None]) -> list[float]:
    return [math.inf if value is None else value for value in values]
