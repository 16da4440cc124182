"""Page of views: what a file of machines and links holds, and a script that changes links in time."""

import json

from docs.generate.markdown import page, paragraph, table
from docs.generate.message_page import schema_section
from dtfm_lab.emulation import world_script
from dtfm_lab.emulation.world_script import WorldChange
from dtfm_lab.networks.catalogue import NETWORKS
from dtfm_lab.networks.consumer_gpus import EFFICIENCY, MACHINES
from dtfm_lab.networks.node_groups import V100_RATES
from dtfm_protocol.job.job_file import Precision
from dtfm_protocol.view.link_matrix import LEAST, MOST, MOST_NODES
from dtfm_protocol.view.view import LayerSeconds, LinkWay, NodeView

EXAMPLE = """\
{
"nodes": [
 {"id": "hamburg", "region": "eu", "flops": 25e12, "memory_bytes": 12e9, "up_gbps": 0.05, "down_gbps": 0.25},
 {"id": "lyon", "region": "eu", "layer_seconds": {"forward": 0.021, "backward": 0.043}, "memory_bytes": 8e9},
 {"id": "osaka", "region": "asia", "flops": {"fp32": 40e12, "bf16": 80e12}}
],
"latency_ms": [
 [0, 12, 120],
 [12, 0, null],
 [120, 118, 0]
],
"bandwidth_gbps": [
 [0, 0.05, 0.04],
 [0.1, 0, null],
 [0.2, 0.08, 0]
]
}
"""
"""A view of three nodes. A test reads it."""
ABOUT = """\
A view says which machines there are and how they are linked. `dtfm-coordinator plan`, `explain`, `compare` and `lab`
read one, `network` makes one up, and each run keeps its own as `view.json` in the coordinator's state folder. There are
two forms: JSON, which people can read, and `.npz` (by the file's ending) for some hundred nodes and more; files of
either are turned into the other by reading and saving, `View.load(path).save(other)` in
`protocol/dtfm_protocol/view/view.py`."""
MATRICES = f"""\
N nodes, {MOST_NODES:,} at most, in any order; the matrices have their order. An entry of row i and column j is of what
i sends to j, and the two directions may differ. The diagonal means nothing. Entries are 0, or {LEAST:g} to {MOST:g}."""
SPEEDS = """\
At least one node needs `layer_seconds` or `flops` for a plan with a job; the paper's cost needs neither. Seconds from
`flops`, of which those in the job's precision count: a layer's forward on one micro-batch is 2 x its parameters x the
micro-batch's tokens, in FLOP, the backward twice that; where some nodes have both figures, their median says how many
FLOP it is instead. A node of which neither is known counts as the slowest that is, and one without `optimizer` updates
as slowly as the slowest that has it (nothing, where none has). [All formulas](cost_model.md)."""
MACHINES_SPEEDS = f"""\
FLOP/s in training, `flops` of their nodes by precision: peaks as published times {EFFICIENCY:g} for consumer GPUs
(`lab/dtfm_lab/networks/consumer_gpus.py` has the sources); for the V100 of all networks but the homes what the paper's
data centre attains (arXiv 2206.01288, in fp16, for which bf16 stands here), and in fp32 the same part of its peak
(`lab/dtfm_lab/networks/node_groups.py`). GPUs without matrix units for bf16 compute it as fast as fp32."""
ARRAYS = """\
`numpy.savez` writes such a file, and nothing in it is unpickled (`allow_pickle=False`)."""
SCRIPT = """\
`dtfm-coordinator lab --script FILE` changes the links of a view while programs run on it. The file is TOML, a table
`[[event]]` for each change; what several say of one link is multiplied."""


def view_page() -> str:
    """Return the page."""
    return page(
        "Views",
        paragraph(ABOUT),
        f"## An example\n```json\n{EXAMPLE}```",
        "## Keys\n"
        + table(
            ["key", "value", "default", "meaning"],
            [
                ["`nodes`", "list of [NodeView](#nodeview)", "", "The machines."],
                ["`latency_ms`", "N rows of N numbers or null", "", "One-way delays in milliseconds; null: estimated."],
                [
                    "`bandwidth_gbps`",
                    "N rows of N numbers or null",
                    "",
                    "Gbit/s (1 is 1.25e8 bytes a second) of a pair that sends alone; 0: the pair cannot talk, and no "
                    "plan has it do so; null: not measured, [estimated](../explanation/allocator.md#what-it-plans-on).",
                ],
                ["`ways`", "list of [LinkWay](#linkway)", "[]", "Pairs that are not connected directly."],
            ],
        ),
        paragraph(MATRICES),
        schema_section(NodeView),
        paragraph(SPEEDS),
        schema_section(LayerSeconds),
        schema_section(LinkWay),
        "## As `.npz`\n"
        + table(
            ["array", "type", "shape", "meaning"],
            [
                ["`nodes`", "text", "()", "The list of nodes as above, as JSON."],
                ["`latency_ms`", "float64", "(N, N)", "NaN: not measured."],
                ["`bandwidth_gbps`", "float64", "(N, N)", "NaN: not measured."],
                ["`ways`", "text", "()", "The list as above, as JSON; it may be missing."],
            ],
        ),
        paragraph(ARRAYS),
        "## Networks that can be made up\n"
        + paragraph("`dtfm-coordinator network NAME --nodes 32 --out view.json` makes one of as many nodes as asked.")
        + "\n\n"
        + table(["name", "is"], [[f"`{name}`", meaning] for name, meaning in NETWORKS.items()]),
        "## Speeds of made-up machines\n"
        + paragraph(MACHINES_SPEEDS)
        + "\n\n"
        + table(
            ["machine", "TFLOP/s in fp32", "in bf16"],
            [[name, *(f"{rates[one] / 1e12:.3g}" for one in ("fp32", "bf16"))] for name, rates in _machines().items()],
        ),
        f"## A script of changes\n{paragraph(SCRIPT)}",
        schema_section(WorldChange),
        f"```toml\n{script_example()}\n```",
    )


def _machines() -> dict[str, dict[Precision, float]]:
    """Return the FLOP/s of all machines of made-up networks, by name and precision."""
    return {"V100": V100_RATES} | {gpu.name: gpu.flops for gpu in MACHINES}


def example() -> object:
    """Return the example's values."""
    return json.loads(EXAMPLE)


def script_example() -> str:
    """Return the example of a script, from the module that reads scripts."""
    return str(world_script.__doc__).partition("\n\n")[2].strip()
