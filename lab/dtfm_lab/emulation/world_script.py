"""The changes of a world: timed events, as a file says them. The world at a time is a function of the script. Pure.

[[event]]            # a link loses nine tenths of its rate, for a minute
at = 30
until = 90
from = "Tokyo"       # id or region of a node, or *
to = "London"
rate = 0.1

[[event]]            # a site goes dark
at = 120
from = "Oregon"
rate = 0

[[event]]            # every evening everything is slow
at = 0
rate = 0.3
period = 60
"""

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.errors import UserError
from dtfm_protocol.schema import Schema
from dtfm_protocol.view.view import NodeView, View

WAVE_SECONDS = 1.0
"""Seconds between the settings of what comes and goes in a period."""
Seconds = Annotated[float, Field(ge=0)]


class WorldChange(Schema):
    """A change of some links for a while."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    at: Seconds
    """Seconds from the world's beginning at which it comes."""
    until: Seconds | None = None
    """Seconds from the world's beginning at which it goes; without it, it stays."""
    sender: str = Field("*", alias="from")
    """Id or region of nodes that send, or * for all."""
    receiver: str = Field("*", alias="to")
    """Id or region of nodes that receive, or * for all."""
    both: bool = True
    """Whether the way back is meant, too."""
    rate: Annotated[float, Field(ge=0)] = 1.0
    """Factor of the rate that was there; 0 is no connection. Where all links of a node are meant, its own limits are,
    too."""
    delay: Annotated[float, Field(ge=0)] = 1.0
    """Factor of the delay that was there."""
    period: Annotated[float, Field(gt=0)] | None = None
    """Seconds in which the change comes and goes as a cosine does, beginning with none."""

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.until is not None and self.until <= self.at:
            raise ValueError("until must be later than at")
        return self

    def strength(self, seconds: float) -> float:
        """Return the part of the change that is there `seconds` after the world's beginning: 0 to 1."""
        if seconds < self.at or (self.until is not None and seconds >= self.until):
            return 0.0
        return 1.0 if self.period is None else (1 - math.cos(2 * math.pi * (seconds - self.at) / self.period)) / 2


class WorldScript(Schema):
    """The changes of a world, as a file gives them."""

    event: tuple[WorldChange, ...] = ()

    @classmethod
    def load(cls, path: Path, view: View) -> Self:
        """Read a script for `view`.

        Raises:
            UserError: unreadable, not a script, or it names what the view lacks.
        """
        try:
            script = cls.read(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the script {path}: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path} is not TOML: {error}") from None
        for number, event in enumerate(script.event):
            for end in (event.sender, event.receiver):
                if not any(_is(end, node) for node in view.nodes):
                    raise UserError(f"{path}: event.{number}: there is no node and no region {end!r} in the view")
        return script

    def changes(self) -> Iterator[float]:
        """Yield the seconds at which the world is to be set anew, in order; without end where a change has a period."""
        edges = sorted({t for event in self.event for t in (event.at, event.until) if t is not None})
        if all(event.period is None for event in self.event):
            yield from edges
            return
        last = math.inf if any(e.period and e.until is None for e in self.event) else max(edges)
        now = 0.0
        while now <= last:
            yield now
            now = min([now + WAVE_SECONDS, *(edge for edge in edges if edge > now)])

    def at(self, seconds: float, view: View, wiring: Wiring) -> Wiring:
        """Return what `wiring`, that of `view`, has become `seconds` after its beginning."""
        delay, rate = [list(row) for row in wiring.delay], [list(row) for row in wiring.rate]
        up, down = list(wiring.up), list(wiring.down)
        for event in self.event:
            strength = event.strength(seconds)
            if not strength:
                continue
            of_rate, of_delay = 1 + strength * (event.rate - 1), 1 + strength * (event.delay - 1)
            ends = [(event.sender, event.receiver)]
            if event.both and event.sender != event.receiver:
                ends.append((event.receiver, event.sender))
            # A set: there and back have links in common where both ends are in one region.
            for i, j in {(i, j) for one, other in ends for i in _named(one, view) for j in _named(other, view)}:
                if i != j:
                    delay[i][j] *= of_delay
                    rate[i][j] = _times(rate[i][j], of_rate)
            for sender, receiver in ends:
                senders, receivers = _named(sender, view), _named(receiver, view)
                if receiver == "*":
                    for i in senders:
                        up[i] = _times(up[i], of_rate)
                if sender == "*":
                    for j in receivers:
                        down[j] = _times(down[j], of_rate)
        return wiring.model_copy(update={"delay": delay, "rate": rate, "up": up, "down": down})


def _named(name: str, view: View) -> list[int]:
    return [number for number, node in enumerate(view.nodes) if _is(name, node)]


def _is(name: str, node: NodeView) -> bool:
    return name in ("*", node.id, node.region)


def _times(rate: float | None, factor: float) -> float | None:
    """Multiply a rate by `factor`; what has no limit keeps none, unless nothing is left."""
    if rate is None:
        return 0.0 if factor == 0 else None
    return rate * factor
