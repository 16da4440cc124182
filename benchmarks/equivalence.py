"""Is a swarm's mathematics one process's? Real swarms of processes against `dtfm-node solo`, plan by plan.

    python -m benchmarks.equivalence [--steps 20] [--out benchmarks/results/equivalence.md]

Besides whole models on plain text: paced orders, sums in unlike parts and along trees, adapters, frozen layers, and
documents that stand apart, packed into sequences or each in one of its own, of which only a part is learned. For each
plan: the largest relative difference of loss and of gradient norm over the steps, and the relative L2 difference of the
final weights. Exits with 1 if any is beyond 1e-5, or if replicas are not bit-identical. What was stopped goes on where
it was; remove the `.json` beside the table to begin anew.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.tables import values, values_with
from dtfm_protocol.checkpoint.store import CheckpointStore

BIN = Path(sys.executable).parent
LIMIT = 1e-5

JOB = """
name = "equivalence"
[model]
architecture = "llama"
hidden_size = 128
intermediate_size = 344
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = {tied}
[data]
tokenizer = "bytes"
{data}
[training]
steps = {steps}
global_batch = 16
micro_batch = 2
sequence_length = 128
learning_rate = 1e-3
warmup_steps = 5
{training}
[evaluation]
every = 10
sequences = 8
[plan]
schedule = "{schedule}"
[checkpoint]
every = 0
"""


@dataclass(frozen=True)
class Kind:
    """What a job says that is not the same for all: of `[data]`, and of `[training]` with tables below it."""

    data: str = 'text = "cpython"'
    training: str = ""


CHAT = 'chat_template = "chat.jinja"\nsources = [{ path = "chat.jsonl", kind = "messages" }]'
KINDS: dict[str, Kind] = {
    "": Kind(),
    "messages": Kind(data=CHAT),
    "messages, packed": Kind(data=f"packing = true\n{CHAT}"),
    "text, packed": Kind(data='packing = true\nsources = [{ path = "rows.jsonl", kind = "jsonl" }]'),
    "LoRA": Kind(training='method = "lora"\n[training.lora]\nr = 4\ntarget_modules = ["q_proj", "v_proj"]'),
    "frozen layers": Kind(training='method = "frozen-layers"\nlayers = [0, 2]'),
}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}{{ m.content + eos_token }}"
    "{% endgeneration %}{% else %}Q: {{ m.content }} {% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Layout:
    """One plan of the table: layer ranges, and a route of one-letter peers for each of the 8 micro-batches."""

    name: str
    stages: list[list[int]]
    routes: list[str]
    tied: bool = True
    schedule: str = "1f1b"
    recompute: tuple[int, ...] = ()
    kind: str = ""
    more: Mapping[str, object] = field(default_factory=dict)
    """What else the plan says: its pace, or the parts of its sums."""


def paced(in_flight: Sequence[int], *, apart: bool = False) -> dict[str, object]:
    """Return the pace of two peers of each of two stages whose links are slow one way and far apart.

    Args:
        in_flight: micro-batches that each may have under way.
        apart: whether the gradients of weights are actions of their own.
    """
    ways = {"ahead": [9000, 4000], "ahead_delay": [40000, 70000], "back": [2000, 9000], "back_delay": [40000, 70000]}
    actions = {"forward": [5000, 6000, 5000, 7000], "backward": [9000, 11000, 8000, 12000]}
    weight = {"weight": [5000, 5000, 4000, 6000]} if apart else {}
    schedule = "zero-bubble" if apart else "1f1b"
    return {"schedule": schedule, "pacing": actions | weight | ways | {"in_flight": in_flight, "kept": in_flight}}


UNLIKE = {"stages": [[49152, 16384], [0, 65536]], "shared": [16384, 16384, 32768, 0]}
"""Parts of sums, in 65536ths: unlike, and some peers have none."""
CHAIN = [[0, 0, 1, 2], [1, 1, 1, 2], [1, 2, 2, 2], [1, 2, 3, 3]]
TWO_LEVELS = [[0, 0, 0, 2], [1, 1, 3, 1], [2, 0, 2, 2], [1, 3, 3, 3]]
"""Trees of the sums of four peers: the parent of each in the tree of each one's part."""
SHARES = ["ab", "ab", "ac", "ab", "ac", "ab", "ac", "ab"]
LAYOUTS = [
    Layout("1 stage x 1", [[0, 4]], ["a"] * 8),
    Layout("1 stage x 2", [[0, 4]], ["a", "b"] * 4),
    Layout("2 stages x 1", [[0, 2], [2, 4]], ["ab"] * 8),
    Layout("2 stages x 2", [[0, 2], [2, 4]], ["ac", "bd"] * 4),
    Layout("2 stages x 2, gpipe", [[0, 2], [2, 4]], ["ac", "bd"] * 4, schedule="gpipe"),
    Layout("2 stages x 2, zero-bubble", [[0, 2], [2, 4]], ["ac", "bd"] * 4, schedule="zero-bubble"),
    Layout("2 stages x 2, recomputed", [[0, 2], [2, 4]], ["ac", "bd"] * 4, recompute=(0, 1)),
    Layout("2 stages x 2, untied", [[0, 2], [2, 4]], ["ac", "bd"] * 4, tied=False),
    Layout("4 stages x 1", [[0, 1], [1, 2], [2, 3], [3, 4]], ["abcd"] * 8),
    Layout("4 stages x 1, gpipe", [[0, 1], [1, 2], [2, 3], [3, 4]], ["abcd"] * 8, schedule="gpipe"),
    Layout("4 stages x 1, zero-bubble", [[0, 1], [1, 2], [2, 3], [3, 4]], ["abcd"] * 8, schedule="zero-bubble"),
    Layout("uneven layers, 1 + 3", [[0, 1], [1, 4]], ["ab"] * 8),
    Layout("uneven shares, 8 / 5 + 3", [[0, 2], [2, 4]], SHARES),
    Layout("uneven shares, gpipe", [[0, 2], [2, 4]], SHARES, schedule="gpipe"),
    Layout("uneven shares, zero-bubble", [[0, 2], [2, 4]], SHARES, schedule="zero-bubble"),
    Layout("2 stages x 2, paced", [[0, 2], [2, 4]], ["ac", "bd"] * 4, more=paced([4, 3, 2, 3])),
    Layout(
        "2 stages x 2, paced, zero-bubble",
        [[0, 2], [2, 4]],
        ["ac", "bd"] * 4,
        schedule="zero-bubble",
        more=paced([4, 4, 3, 2], apart=True),
    ),
    Layout("2 stages x 2, unlike parts", [[0, 2], [2, 4]], ["ac", "bd"] * 4, more={"parts": UNLIKE}),
    Layout(
        "2 stages x 2, untied, unlike parts",
        [[0, 2], [2, 4]],
        ["ac", "bd"] * 4,
        tied=False,
        more={"parts": {**UNLIKE, "shared": []}},
    ),
    Layout("1 stage x 4, a chain", [[0, 4]], ["a", "b", "c", "d"] * 2, more={"trees": {"stages": [CHAIN]}}),
    Layout(
        "1 stage x 4, two levels, unlike parts",
        [[0, 4]],
        ["a", "b", "c", "d"] * 2,
        tied=False,
        more={"trees": {"stages": [TWO_LEVELS]}, "parts": {"stages": [[32768, 0, 16384, 16384]]}},
    ),
    Layout(
        "2 stages x 2, a chain over both ends",
        [[0, 2], [2, 4]],
        ["ac", "bd"] * 4,
        more={"trees": {"stages": [[], []], "shared": CHAIN}},
    ),
    *(Layout(f"2 stages x 2, {kind}", [[0, 2], [2, 4]], ["ac", "bd"] * 4, kind=kind) for kind in KINDS if kind),
    *(Layout(f"uneven, 1 + 3 layers, {kind}", [[0, 1], [1, 4]], SHARES, kind=kind) for kind in KINDS if kind),
]


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/equivalence.md"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="equivalence-"))
    _write_conversations(folder)
    try:
        for layout in LAYOUTS:
            if layout.name not in values(arguments.out):  # of one that was stopped
                values_with(arguments.out, layout.name, _measure(folder, layout, arguments.steps))
        kept = values(arguments.out)
        lines = [kept[layout.name] for layout in LAYOUTS]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    head = [
        f"Swarms of real processes against one process, fp32, {arguments.steps} steps, on the same job "
        f"(llama, 4 layers of 128, 8 micro-batches of 2 x 128 bytes). Command: `make equivalence`. Of messages the "
        "assistant's are learned; of LoRA weights are the adapters.",
        "",
        "| plan | peers | loss | gradient norm | weights (L2) | evaluation | replicas |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    arguments.out.write_text("\n".join([*head, *(line for line, _ in lines)]) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".json").unlink()
    if not all(good for _, good in lines):
        raise SystemExit(f"beyond {LIMIT:g}, or replicas differ: see {arguments.out}")


def _measure(folder: Path, layout: Layout, steps: int) -> tuple[str, bool]:
    """One row of the table, and whether it holds."""
    kind, name = KINDS[layout.kind], f"{layout.tied}-{layout.kind}".replace(" ", "-").replace(",", "")
    job = folder / f"{name}-{layout.schedule}.toml"
    values = {"steps": steps, "tied": str(layout.tied).lower(), "schedule": layout.schedule}
    job.write_text(JOB.format(**values, data=kind.data, training=kind.training), encoding="utf-8")
    alone = folder / f"solo-{name}"
    if not alone.exists():
        _run("dtfm-node", "solo", job, "--state-dir", alone, "--device", "cpu")
    plan = folder / "plan.json"
    routes = [list(route) for route in layout.routes]
    said = {"stages": layout.stages, "routes": routes, "recompute": layout.recompute, **layout.more}
    plan.write_text(json.dumps(said), encoding="utf-8")
    peers = len(set("".join(layout.routes)))
    swarm = folder / layout.name.replace(" ", "-").replace("/", "-").replace(",", "")
    _run("dtfm-coordinator", "swarm", job, "--nodes", str(peers), "--plan", plan, "--state-dir", swarm)

    rows, reference = _rows(swarm), _rows(alone)
    assert [row["step"] for row in rows] == [row["step"] for row in reference] == list(range(1, steps + 1))
    loss, norm, evaluation = (_largest(rows, reference, key) for key in ("loss", "grad_norm", "eval_loss"))
    weights = _weights(swarm, alone)
    manifest = CheckpointStore(swarm / "checkpoints", sweep=False).newest()
    assert manifest is not None
    identical = all(len(set(stage.values())) == 1 for stage in manifest.replicas)
    line = (
        f"| {layout.name} | {peers} | {loss:.1e} | {norm:.1e} | {weights:.1e} | {evaluation:.1e} "
        f"| {'bit-identical' if identical else 'DIFFER'} |"
    )
    print(line, flush=True)
    shutil.rmtree(swarm)
    return line, identical and max(loss, norm, weights, evaluation) <= LIMIT


def _write_conversations(folder: Path) -> None:
    """Write conversations of one and two turns, and plain rows, of unlike lengths: some are longer than a sequence."""
    rows, texts = list[dict[str, Any]](), list[dict[str, str]]()
    for number in range(1, 601):
        turns = []
        for factor in range(1, 2 + number % 2):
            turns.append({"role": "user", "content": f"{number} x {factor}?"})
            words = " and ".join(str(number * factor * power) for power in range(1, 2 + number % 23))
            turns.append({"role": "assistant", "content": words})
        rows.append({"messages": turns})
        texts.append({"text": " ".join(turn["content"] for turn in turns)})
    for name, lines in (("chat.jsonl", rows), ("rows.jsonl", texts)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")


def _run(*command: object) -> None:
    name, *arguments = map(str, command)
    done = subprocess.run([str(BIN / name), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} {arguments[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _largest(rows: list[dict[str, Any]], reference: list[dict[str, Any]], key: str) -> float:
    """Largest relative difference over the steps that have a value."""
    pairs = [(row[key], other[key]) for row, other in zip(rows, reference, strict=True) if other[key] is not None]
    return float(max(abs(ours - other) / abs(other) for ours, other in pairs))


def _weights(swarm: Path, alone: Path) -> float:
    """Relative L2 difference over all parameters."""
    stores = [CheckpointStore(path / "checkpoints", sweep=False) for path in (swarm, alone)]
    manifests = [store.newest() for store in stores]
    assert manifests[0] is not None
    assert manifests[1] is not None
    mine, other = (dict(store.tensors(manifest)) for store, manifest in zip(stores, manifests, strict=True) if manifest)
    assert mine.keys() == other.keys()
    difference = sum(float((mine[name].double() - other[name].double()).square().sum()) for name in other)
    size = sum(float(tensor.double().square().sum()) for tensor in other.values())
    return float(torch.tensor(difference / size).sqrt())


if __name__ == "__main__":
    main()
