"""Limits that the person of a machine has chosen with the options of `join`: read all at once, and said in words."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from dtfm_node.commands.limit_options import checked_gb, rate_of, rules_of
from dtfm_node.limits.availability import Rules
from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class ChosenLimits:
    """What the options of `join` say of the machine; None: its person has not said."""

    device: str = "auto"
    threads: int | None = None
    memory_gb: float | None = None
    disk_gb: float | None = None
    upload: float = math.inf
    """Bytes a second."""
    download: float = math.inf
    """Bytes a second."""
    rules: Rules = field(default_factory=Rules)
    gpu_memory_gb: float | None = None
    gpu_percent: float | None = None
    """Part of the time for which a GPU may compute."""
    name: str = ""
    """What others see the machine called; "": nothing."""

    @classmethod
    def of(cls, given: Mapping[str, Any], called: Callable[[str], str]) -> "ChosenLimits":
        """Return the limits that the parameters of `join` set.

        Args:
            given: the parameters, by the names that they have in the function.
            called: returns how an error is to call an option.

        Raises:
            UserError: some say nothing that a node could hold to; all of these are told.
        """
        faults: list[str] = []

        def read(how: Callable[[], T], nothing: T) -> T:
            try:
                return how()
            except UserError as error:
                faults.append(str(error))
                return nothing

        def gb(key: str, option: str) -> float | None:
            return read(lambda: checked_gb(given[key], called(option)), None)

        def rate(key: str) -> float:
            return read(lambda: rate_of(given[key], called(key)), math.inf)

        switches = {name: bool(given[name]) for name in ("not_on_battery", "when_idle", "not_metered")}
        rules = partial(rules_of, given["hours"], called("hours"), **switches)
        found = cls(
            device=given["device"],
            threads=given["threads"],
            memory_gb=gb("memory", "memory"),
            disk_gb=gb("disk", "disk"),
            upload=rate("upload"),
            download=rate("download"),
            rules=read(rules, Rules()),
            gpu_memory_gb=gb("gpu_memory", "gpu-memory"),
            gpu_percent=given["gpu_share"],
            name=given["name"],
        )
        if faults:
            raise UserError("; ".join(faults))
        return found

    @property
    def in_words(self) -> str:
        """The limits in force, with commas between them; "": there are none."""
        rules, found = self.rules, list[str]()
        if self.device != "auto":
            found.append(f"computes on {printable(self.device)}")
        if self.threads is not None:
            found.append(f"{self.threads} thread{'s'[: self.threads != 1]}")
        for amount, of in ((self.memory_gb, "of memory"), (self.gpu_memory_gb, "of the GPU's memory")):
            found += [] if amount is None else [f"at most {amount:g} GB {of}"]
        found += [] if self.gpu_percent is None else [f"computes on the GPU {self.gpu_percent:g} % of the time"]
        found += [] if self.disk_gb is None else [f"keeps at most {self.disk_gb:g} GB"]
        for rate, does in ((self.upload, "sends"), (self.download, "receives")):
            found += [] if math.isinf(rate) else [f"{does} at most {in_mbit(rate)}"]
        if rules.hours:
            found.append(f"works {', '.join(map(str, rules.hours))} only")
        switches = {"not on battery": rules.not_on_battery, "only while nobody uses the machine": rules.when_idle}
        switches |= {"not on a metered network": rules.not_metered}
        return ", ".join(found + [words for words, asked in switches.items() if asked])


def in_mbit(rate: float) -> str:
    """Return a rate in bytes a second as people say it."""
    return f"{rate * 8 / 1e6:,.4g} Mbit/s"
