"""List of the devices that `--device` names, where they are several."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence

from dtfm_protocol.errors import UserError

ALL = "all"
"""What stands for all CUDA devices of the machine."""
MOST = 64
"""Devices of one machine."""
_DEVICE = re.compile(r"cpu|mps|cuda:\d{1,2}")
_COUNT = "import torch; print(torch.cuda.device_count())"


def names_several(device: str) -> bool:
    """Whether `device`, as it was given, may stand for more than one."""
    return device == ALL or "," in device


def devices_of(device: str, count_here: Callable[[], int]) -> tuple[str, ...]:
    """Return the devices for which `device` stands.

    Args:
        device: "all", or names with commas between them. The processor may be named more than once, for tries.
        count_here: returns the number of CUDA devices of this machine.

    Raises:
        UserError: there are none, or a name is none, or stands there twice.
    """
    if device == ALL:
        count = min(MOST, count_here())
        if not count:
            raise UserError("--device all: torch sees no CUDA device here; leave --device away to compute on what is")
        return tuple(f"cuda:{number}" for number in range(count))
    names = tuple(name.strip() for name in device.split(","))
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise UserError(f"--device {device}: {name or 'nothing'} is no device; name them as in cuda:0,cuda:2")
        if name != "cpu" and names.count(name) > 1:
            raise UserError(f"--device {device}: {name} stands there twice; a device has one node")
    if len(names) > MOST:
        raise UserError(f"--device {device}: that is more than {MOST}")
    return names


def cuda_devices_here() -> int:
    """Return the number of CUDA devices that torch sees; asked in a process of its own, for torch takes memory."""
    return _counted([sys.executable, "-c", _COUNT])


def _counted(command: Sequence[str]) -> int:
    said = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    lines = said.stdout.split()
    if said.returncode or not lines or not lines[-1].isdecimal():
        why = (said.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"--device all: cannot ask torch for this machine's devices: {why}")
    return int(lines[-1])
