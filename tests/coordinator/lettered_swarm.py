"""A swarm whose peers are named by one letter each, with a small job, and plans that are written as routes."""

from itertools import pairwise

import numpy as np

from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_coordinator.tools.explain.step_findings import StepFindings, step_findings
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import LayerSeconds, NodeView, View

DEMAND = ModelDemand(
    layer_parameters=(1000,) * 4,
    embedding_parameters=500,
    head_parameters=500,
    message_values=250_000,
    layer_activation_bytes=1_000,
)
"""A message has 1 MB: 8 ms at 1 Gbit/s."""
JOB = """
name = "small"
[model]
architecture = "llama"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 4
num_attention_heads = 2
num_key_value_heads = 2
[data]
text = "cpython"
tokenizer = "bytes"
[training]
steps = 1
global_batch = 4
micro_batch = 1
sequence_length = 16
learning_rate = 1e-3
"""


def swarm(
    peers: str,
    gbps: float = 10.0,
    ms: float = 1.0,
    slow: dict[str, float] | None = None,
    links: dict[str, float] | None = None,
    **node: float,
) -> View:
    """Peers of one letter; `slow` multiplies a peer's seconds, `links` sets the Gbit/s of "ab" and of "ba"."""
    count = len(peers)
    bandwidth = np.full((count, count), gbps)
    for pair, value in (links or {}).items():
        bandwidth[peers.index(pair[0]), peers.index(pair[1])] = value
        bandwidth[peers.index(pair[1]), peers.index(pair[0])] = value
    return View(
        nodes=tuple(
            NodeView(
                id=peer,
                region="here" if index < count / 2 else "there",
                layer_seconds=LayerSeconds(
                    forward=0.01 * (slow or {}).get(peer, 1), backward=0.02 * (slow or {}).get(peer, 1), optimizer=0.001
                ),
                **node,
            )
            for index, peer in enumerate(peers)
        ),
        latency_ms=np.full((count, count), ms),
        bandwidth_gbps=bandwidth,
    )


def plan(*routes: str, schedule: str = "1f1b") -> Plan:
    """Routes as strings of one-letter peers, over four layers."""
    depth = len(routes[0])
    ends = [round(4 * stage / depth) for stage in range(depth + 1)]
    stages = list(pairwise(ends))
    return Plan.read({"stages": stages, "routes": [tuple(route) for route in routes], "schedule": schedule}, "plan")


def work(micro_batches: int = 4, planning: Planning | None = None) -> Workload:
    return Workload(DEMAND, micro_batches, planning or Planning())


def found(of: Plan, view: View) -> StepFindings:
    job = work(len(of.routes))
    return step_findings(of, view, job, predict(view, job, of))
