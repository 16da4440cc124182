"""What a node says of its machine: how fast it is at the job's own layer, how much memory it offers, and what fits."""

import torch

from dtfm_node.control.plain_words import READY
from dtfm_node.engine.device import describe, free_host_memory, free_memory
from dtfm_node.engine.device_speed import DeviceSpeed, measure, measuring_flop, product_speeds
from dtfm_node.engine.emulated_speed import paced_layer
from dtfm_node.engine.job_survey import JobSurvey
from dtfm_node.engine.layers import check_compiler
from dtfm_node.engine.runtime import Runtime
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.quantities import GB, bytes_in_words
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.view.view import LayerSeconds

MEASURING_SECONDS = 120.0
"""Seconds that measuring a layer may be expected to take: nobody can break it off."""


async def measure_profile(
    job: ResolvedJob,
    survey: JobSurvey,
    machine: Runtime,
    memory_gb: float | None,
    session: str,
    caps: TrafficCaps | None = None,
) -> Profile:
    """The profile of `machine` but for its addresses, measured with the job's own layer; of the device that it behaves
    as, if it is paced or rests for a part of the time.

    A layer that does not fit into what is offered, or would take minutes, is not built: its seconds are then those that
    matrix products of its size take.

    Args:
        survey: what the job asks for.
        memory_gb: most memory to offer; None: all that is free.
        session: of the daemon.
        caps: on what the node sends and receives; None: there are none.

    Raises:
        UserError: layers are to be compiled, and that does not work here.
    """
    device, training = machine.device, job.training
    if machine.compiled:
        await machine.compute(check_compiler, device)
    memory = offered_bytes(device, memory_gb)
    measured = await machine.compute(_speed, job, device, machine.compiled, survey.measuring <= memory)
    memory = max(1.0, min(memory, float(measured.memory_bytes)))
    said, flops, layer = describe(device), measured.flops, measured.layer_seconds
    if machine.pace is not None:
        said = f"{said}, paced to {machine.pace / 1e9:.4g} GFLOP/s"
        flops = dict.fromkeys(flops, machine.pace)
        layer = paced_layer(job.config, training, machine.pace, layer)
    if machine.share < 1.0:
        said = f"{said}, for {machine.share:.0%} of the time"
        flops = {precision: speed * machine.share for precision, speed in flops.items()}
        layer = layer.times(1.0 / machine.share)
    return Profile(
        device=said,
        flops=flops,
        layer_seconds=layer,
        memory_bytes=memory,
        host_bytes=offered_host_bytes(device, memory_gb),
        addresses=(),
        up_gbps=caps.up.gbps if caps is not None else None,
        down_gbps=caps.down.gbps if caps is not None else None,
        version=product_version(),
        session=session,
    )


def offered_bytes(device: torch.device, memory_gb: float | None) -> float:
    """Return the bytes of memory that a node offers: what is free on its device, or what its owner allows of that. What
    the program itself takes is not among them."""
    free = float(free_memory(device))
    return free if memory_gb is None else max(1.0, min(free, memory_gb * GB))


def offered_host_bytes(device: torch.device, memory_gb: float | None) -> float | None:
    """Return the bytes of the machine's memory that a node offers beside those of a GPU; None: they are one memory."""
    free = free_host_memory(device)
    return None if free is None else max(1.0, float(free) if memory_gb is None else min(free, memory_gb * GB))


def availability(survey: JobSurvey, profile: Profile) -> str:
    """Whether any stage could fit into the memory that is offered, in one line for the volunteer."""
    needed = survey.smallest_stage if profile.host_bytes is None else survey.smallest_apart
    if profile.memory_bytes >= needed:
        return READY
    return (
        f"this node offers {bytes_in_words(profile.memory_bytes)} of memory and the smallest stage of the model needs "
        f"{bytes_in_words(needed)}: it stays available; free some memory, or offer more with --memory"
    )


def _speed(job: ResolvedJob, device: torch.device, compiled: bool, fits: bool) -> DeviceSpeed:
    """Return the device's speed: measured, or where a layer does not fit or takes too long, as matrix products tell."""
    training, flops = job.training, product_speeds(device)
    speed = flops[training.precision]
    seconds = measuring_flop(job.config, training.micro_batch, training.sequence_length) / speed
    if fits and seconds <= MEASURING_SECONDS:
        return measure(job.config, training, device, compiled, flops)
    layer = paced_layer(job.config, training, speed, LayerSeconds(forward=1.0, backward=1.0))
    return DeviceSpeed(flops, layer, free_memory(device))
