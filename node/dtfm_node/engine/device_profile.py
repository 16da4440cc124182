"""What a node says of its machine: how fast it is at the job's own layer, how much memory it offers, and what fits."""

from importlib.metadata import version

from dtfm_node.engine.device import describe
from dtfm_node.engine.device_speed import measure
from dtfm_node.engine.emulated_speed import paced_layer
from dtfm_node.engine.layers import check_compiler
from dtfm_node.engine.runtime import Runtime
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.model_sizes import smallest_stage_bytes


async def measure_profile(
    job: ResolvedJob, machine: Runtime, memory_gib: float | None, addresses: tuple[str, ...], session: str
) -> Profile:
    """The profile of `machine`, measured with the job's own layer; of the device that it behaves as, if it is paced.

    Args:
        memory_gib: most memory to offer; None: all that is free.
        addresses: where the node is reached.
        session: of the daemon.

    Raises:
        UserError: layers are to be compiled, and that does not work here.
    """
    device, training = machine.device, job.training
    if machine.compiled:
        await machine.compute(check_compiler, device)
    measured = await machine.compute(
        measure,
        job.config,
        training.precision,
        training.micro_batch,
        training.sequence_length,
        device,
        machine.compiled,
    )
    memory = float(measured.memory_bytes)
    if memory_gib is not None:
        memory = max(1.0, min(memory, memory_gib * 2**30))
    said, flops, layer = describe(device), measured.flops, measured.layer_seconds
    if machine.pace is not None:
        said = f"{said}, paced to {machine.pace / 1e9:.4g} GFLOP/s"
        flops = dict.fromkeys(flops, machine.pace)
        layer = paced_layer(job.config, training, machine.pace, layer)
    return Profile(
        device=said,
        flops=flops,
        layer_seconds=layer,
        memory_bytes=memory,
        addresses=addresses,
        version=version("dtfm"),
        session=session,
    )


def availability(job: ResolvedJob, profile: Profile) -> str:
    """Whether any stage could fit into the memory that is offered, in one line for the volunteer."""
    training = job.training
    needed = smallest_stage_bytes(job.config, training.micro_batch, training.sequence_length, training.precision)
    if profile.memory_bytes >= needed:
        return "available; waiting for a plan"
    return (
        f"this node offers {profile.memory_bytes / 1e9:.3g} GB of memory and the smallest stage of the model needs "
        f"{needed / 1e9:.3g} GB: it stays available; free some memory, or offer more with --memory"
    )
