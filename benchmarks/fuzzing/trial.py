"""A trial of one parser: so many inputs, what came of them, how fast, and what stays in memory."""

import contextlib
import ctypes
import gc
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.fuzzing.mutations import Mutator
from dtfm_protocol.errors import Refused

GROWTH_LIMIT = 16 << 20
"""Bytes by which memory may grow after the first WARM_PART of the inputs: what is remembered of others has an end,
which may be reached later."""
WARM_PART = 0.2
SLOWEST_SECONDS = 2.0
"""Seconds of the processor that one input may take."""
MOST_FAULTS = 20
"""Different faults that are kept of one parser."""


@dataclass(frozen=True)
class Target:
    """A parser that bytes from others reach."""

    name: str
    parse: Callable[[bytes], object]
    """Does with bytes what the program does; whatever it raises but `refusals` is a fault."""
    seeds: tuple[bytes, ...]
    """Valid inputs."""
    refusals: tuple[type[Exception], ...] = (Refused,)
    """The errors that its documentation states."""
    cost: int = 1
    """Such an input takes as long as so many others, and there are so many times fewer."""


@dataclass
class Fault:
    """Something that came out of a parser and must not."""

    what: str
    """The error, and where it was raised."""
    data: bytes
    """The first input that leads to it."""


@dataclass
class Outcome:
    """What came of a trial."""

    name: str
    inputs: int = 0
    taken: int = 0
    """Inputs that were as good as valid ones."""
    seconds: float = 0.0
    """Seconds of the processor, which what else runs on the machine does not change much."""
    slowest: float = 0.0
    """Seconds of the slowest input."""
    growth: int = 0
    """Bytes by which this process has grown after the first inputs."""
    peak: int = 0
    """Bytes that it had more at its largest than before."""
    faults: dict[str, Fault] = field(default_factory=dict)

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Self:
        """Return the outcome of which this was kept."""
        faults = {key: Fault(what, bytes.fromhex(data)) for key, (what, data) in kept["faults"].items()}
        return cls(**{**kept, "faults": faults})

    def kept(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {**vars(self), "faults": {key: (one.what, one.data.hex()) for key, one in self.faults.items()}}

    @property
    def is_good(self) -> bool:
        """Whether nothing but the stated refusals came out, soon, and nothing stays."""
        return not self.faults and self.growth <= GROWTH_LIMIT and self.slowest <= SLOWEST_SECONDS


def tried(
    target: Target, inputs: int, rng: random.Random, progress: Callable[[int], object] = lambda _: None
) -> Outcome:
    """Give a parser its valid inputs, and then so many that are nearly valid.

    Args:
        target: the parser.
        inputs: number of mutated inputs.
        rng: decides what they are.
        progress: told how many are done, now and then.

    Raises:
        AssertionError: the parser refuses a valid input, so that the trial would show nothing.
    """
    for seed in target.seeds:
        try:
            target.parse(seed)
        except Exception as error:
            raise AssertionError(f"{target.name} does not take a valid input: {error!r}") from error
    outcome, mutator = Outcome(target.name), Mutator(target.seeds, rng)
    begun = time.process_time()
    for number in range(inputs):
        if number % 1000 == 0:
            progress(number)
        _try_one(target, mutator.next(), outcome)
    outcome.inputs, outcome.seconds = inputs, time.process_time() - begun
    progress(inputs)
    return outcome


def measured(
    target: Target, inputs: int, rng: random.Random, progress: Callable[[int], object] = lambda _: None
) -> Outcome:
    """Try a parser as `tried`, and measure the memory that it takes and keeps."""
    first = int(inputs * WARM_PART)
    _forget_peak()
    before = resident()
    warm_up = tried(target, first, rng, progress)
    warm = resident()
    outcome = tried(target, inputs - first, rng, lambda done: progress(first + done))
    outcome.inputs, outcome.taken = inputs, outcome.taken + warm_up.taken
    outcome.seconds += warm_up.seconds
    outcome.slowest = max(outcome.slowest, warm_up.slowest)
    outcome.faults = {**outcome.faults, **warm_up.faults}
    outcome.growth, outcome.peak = max(0, resident() - warm), max(0, _peak() - before)
    return outcome


def _try_one(target: Target, data: bytes, outcome: Outcome) -> None:
    begun = time.process_time()
    try:
        target.parse(data)
        outcome.taken += 1
    except target.refusals:
        pass
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - that is what is looked for; Rust's panics are no `Exception`
        what = f"{type(error).__name__} in {_where(error)}: {str(error)[:100]!r}"
        key = what.partition(":")[0]
        if len(outcome.faults) < MOST_FAULTS:
            outcome.faults.setdefault(key, Fault(what, data))
    outcome.slowest = max(outcome.slowest, time.process_time() - begun)


def _where(error: BaseException) -> str:
    """Return the innermost places of this project that an error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "dtfm_" in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-2:])) or "a library"


def resident() -> int:
    """Return the bytes of memory that this process has, after what nobody needs is gone, from the allocator too: what
    that keeps of one large input would look like growth."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such function
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _forget_peak() -> None:
    """Have the peak counted from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)
