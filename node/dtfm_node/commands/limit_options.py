"""Options of `join` that limit what the node takes of its machine, and when it works."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from dtfm_protocol.errors import UserError

if TYPE_CHECKING:  # the command line is there before the slow imports
    from dtfm_node.limits.availability import Rules

LEAST_GB = 1e-9
"""GB below which an amount is none at all."""

Memory = Annotated[float | None, typer.Option("--memory", help="Offer at most so many GB of memory.")]
GpuMemory = Annotated[
    float | None,
    typer.Option("--gpu-memory", help="Offer at most so many GB of the GPU's memory (default: --memory)."),
]
GpuShare = Annotated[
    float | None,
    typer.Option(
        "--gpu-share", min=1, max=100, metavar="PERCENT", help="Compute on the GPU for so much of the time at most."
    ),
]
Disk = Annotated[
    float | None, typer.Option("--disk", help="Keep at most so many GB on disk (default: half of what is free).")
]
Upload = Annotated[str | None, typer.Option("--upload", metavar="RATE", help="Send at most so much: 10Mbit, 1.2MB/s.")]
Download = Annotated[
    str | None, typer.Option("--download", metavar="RATE", help="Receive at most so much: 50Mbit, 6MB/s.")
]
WorkHours = Annotated[
    str | None, typer.Option("--hours", metavar="HOURS", help="Work in these hours only: 22-7, or 22:30-6:45,12-13.")
]
NotOnBattery = Annotated[bool, typer.Option("--not-on-battery", help="Pause while the machine runs on battery.")]
WhenIdle = Annotated[bool, typer.Option("--when-idle", help="Pause while somebody uses the machine.")]
NotMetered = Annotated[bool, typer.Option("--not-metered", help="Pause while the network is a metered one.")]
Nice = Annotated[
    int,
    typer.Option("--nice", min=0, max=19, help="Priority for processor and disk: 0 as it was started, 19 the lowest."),
]


def checked_gb(amount: float | None, option: str) -> float | None:
    """Return an amount in GB that was given for `option`; None: none was.

    Raises:
        UserError: it is nothing, or no number.
    """
    if amount is not None and not LEAST_GB < amount < math.inf:
        raise UserError(f"{option} {amount:g}: a node cannot take part with that; say more than 0 GB, or leave it away")
    return amount


def rate_of(text: str | None, option: str) -> float:
    """Return the bytes a second that were given for `option`; infinity: none were.

    Raises:
        UserError: it is no rate, or too low a one.
    """
    from dtfm_node.limits.traffic_rate import bytes_a_second

    return math.inf if text is None else bytes_a_second(text, option)


def rules_of(
    hours: str | None, option: str = "--hours", *, not_on_battery: bool, when_idle: bool, not_metered: bool
) -> "Rules":
    """Return when the node may work; an error calls the option of `hours` as `option` says.

    Raises:
        UserError: `hours` are none.
    """
    from dtfm_node.limits.availability import Rules
    from dtfm_node.limits.hours import Hours

    spans = () if hours is None else Hours.parsed(hours, option)
    return Rules(spans, not_on_battery=not_on_battery, when_idle=when_idle, not_metered=not_metered)
