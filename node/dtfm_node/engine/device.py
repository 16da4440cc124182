"""Choice of the device that computes, and its free memory."""

import gc
import platform

import psutil
import torch

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Precision


def choose(name: str) -> torch.device:
    """Return the device called `name`: "auto", "cpu", "cuda", "cuda:1", "mps".

    Raises:
        UserError: no such device here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda:0")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in {"cpu", "cuda", "mps"}:
        raise UserError(f"--device {name}: choose auto, cpu, cuda, cuda:N or mps")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise UserError(f"--device {name}: torch sees {count} CUDA devices here; try --device auto")
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device {name}: torch sees no MPS device here; try --device auto")
    return torch.device(device.type)


def describe(device: torch.device) -> str:
    """Return the device in words for people."""
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    if device.type == "mps":
        return f"mps {platform.processor()}"
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'s' if threads != 1 else ''}"


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on the device, which training could take now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return int(psutil.virtual_memory().available)


def has_own_memory(device: torch.device) -> bool:
    """Whether the device has memory of its own, apart from the machine's."""
    return device.type == "cuda"


def free_host_memory(device: torch.device) -> int | None:
    """Return the bytes that are free in the machine's memory beside a device with its own, its share where there are
    several; None: they are one memory."""
    if not has_own_memory(device):
        return None
    return int(psutil.virtual_memory().available) // max(1, torch.cuda.device_count())


def program_bytes(device: torch.device) -> int:
    """Return the bytes of the processor's memory that this process takes now: of Python, torch and other libraries,
    as long as there is no model. Of a GPU's memory this is not known: 0 there; what is free there is without it."""
    return int(psutil.Process().memory_info().rss) if device.type == "cpu" else 0


def release_memory(device: torch.device) -> None:
    """Give the memory back to the device's other programs that torch keeps for later."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, the machine's or the device's, could not be had."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context of a forward: bf16 products over fp32 weights for "bf16", else one that changes nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
