"""Limits of this node's own process, set before it hears of any job: the system holds to them, whoever asks."""

import contextlib
from functools import partial

import psutil
import torch

from dtfm_node.engine.device import choose, free_memory
from dtfm_node.engine.job_survey import Surveyor, answer, confined_survey, local_survey
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.confined_process import ConfinedProcess, is_possible
from dtfm_protocol.process.memory_limit import MARGIN_BYTES, TIMES_OFFERED, data_bytes, hold_data_to, most_data
from dtfm_protocol.process.quantities import GB


def surveyor(stack: contextlib.ExitStack) -> Surveyor:
    """Return what surveys the swarm's job: a process of its own that waits for it from now on, where there can be one.

    To be called before this process has threads, and with all imported that a survey needs.
    """
    if not is_possible():
        return local_survey
    return partial(confined_survey, stack.enter_context(ConfinedProcess.forked(answer)))


def memory_of(device_name: str, memory_gb: float | None, gpu_gb: float | None) -> float | None:
    """Return the most GB to offer of the memory of the device that computes; None: all that is free.

    Args:
        device_name: as `choose` takes it.
        memory_gb: most memory, of whatever device.
        gpu_gb: most memory of a GPU.

    Raises:
        UserError: a GPU's memory is limited, and none computes; or there is no such device.
    """
    if gpu_gb is None:
        return memory_gb
    if choose(device_name).type == "cpu":
        raise UserError("--gpu-memory: this node computes on the processor; limit its memory with --memory")
    return gpu_gb


def share_of(device_name: str, percent: float | None) -> float:
    """Return the part of the time for which the device that computes may be busy, of a GPU's `percent`; None: all.

    Args:
        device_name: as `choose` takes it.

    Raises:
        UserError: a GPU's time is limited, and none computes; or there is no such device.
    """
    if percent is None:
        return 1.0
    if choose(device_name).type == "cpu":
        raise UserError("--gpu-share: this node computes on the processor; limit it with --threads, or --nice")
    return percent / 100


def hold_memory(device_name: str, memory_gb: float | None) -> None:
    """Have the system hold this process to the memory that it offers for training, and a margin.

    On the processor, what it allocates is limited (Linux); on a CUDA device what torch takes there, where the owner has
    said how much.

    Raises:
        UserError: there is no such device.
    """
    device = choose(device_name)
    free = free_memory(device)
    offered = free if memory_gb is None else memory_gb * GB
    if device.type == "cpu":
        now = data_bytes()
        if now is not None:
            hold_data_to(most_data(now, offered, int(psutil.virtual_memory().available)))
    elif device.type == "cuda" and memory_gb is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (TIMES_OFFERED * offered + MARGIN_BYTES) / total), device)
