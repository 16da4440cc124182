"""Bytes that a parameter takes while it is trained: counted by the table of slots, and measured, by way of training.

`python -m benchmarks.parameter_bytes --out FILE` keeps the table. For each method, optimizer and type of weights a
process of its own builds the middle stage of a llama as a node does, trains it for three steps of one micro-batch of a
few tokens, and says how much its own memory (RssAnon) has grown at most while it trained, beyond what the same process
held when it had loaded all programs that training takes. Counted is what a plan asks for, without activations and
messages, which are taken from what was measured, too.

The watch of training begins when all weights are in place. Those that are frozen are read from pieces, a tensor at a
time, as a node reads them, before gradients and the optimizer's tensors are used; that is watched apart, and the table
says what the process held at most then. No plan counts the tensor that is being read, which is there twice beside its
place: where little is trained, a stage takes more for a moment as it begins than later. Not looked at: how trained
weights are drawn, to which gradients and moments come only later, and how pieces are fetched from peers. A job without
a base draws frozen weights, too, which takes about as much as reading them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.loaded import own_bytes
from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.state_slots import WEIGHT
from dtfm_protocol.job.job_file import Model, Training
from dtfm_protocol.model.frozen_parameters import frozen_names
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.process import command_line

LAYERS = 4
SHAPE: dict[str, Any] = {
    "architecture": "llama",
    "hidden_size": 1536,
    "intermediate_size": 4224,
    "num_hidden_layers": LAYERS + 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
QUICK = SHAPE | {"hidden_size": 512, "intermediate_size": 1408}
LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32.0, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
WAYS: tuple[dict[str, Any], ...] = (
    *({"optimizer": name, "weights": kept} for kept in ("fp32", "bf16") for name in ("adamw", "adamw-8bit", "sgd")),
    {"method": "frozen-layers", "layers": [1, 1 + LAYERS // 2], "optimizer": "adamw"},
    {"method": "lora", "lora": LORA, "optimizer": "adamw"},
    {"method": "lora", "lora": LORA, "optimizer": "adamw-8bit"},
)
"""What `[training]` says beside the sizes of a step."""
STEPS = 3


@contextmanager
def watched() -> Iterator[list[int]]:
    """Watch this process until the block ends; the list has what its own memory was from time to time, in bytes."""
    found, done = [own_bytes(os.getpid())], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            found.append(own_bytes(os.getpid()))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found.append(own_bytes(os.getpid()))


def training_of(way: dict[str, Any]) -> Training:
    """The table `[training]`."""
    values = {"steps": STEPS, "global_batch": 1, "micro_batch": 1, "sequence_length": 16, "learning_rate": 1e-4}
    return Training.model_validate(values | way)


def config_of(shape: dict[str, Any]) -> dict[str, Any]:
    """The model's config."""
    return resolve_config(Model.model_validate(shape), 257, 16)


def write_pieces(shape: dict[str, Any], way: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write what the stage does not train as pieces, one for each parameter; their hashes by its name."""
    import torch

    from dtfm_protocol.model.initial_weights import initial_value
    from dtfm_protocol.model.stage import build_stage

    torch.set_num_threads(1)
    config, training = config_of(shape), training_of(way)
    names, pieces = frozen_names(config, training), PieceFolder(folder)
    held = build_stage(config, 1, 1 + LAYERS, torch.device("meta")).named_state()
    return {
        name: pieces.write({f"{WEIGHT}/{name}": initial_value(config, training.seed, name, parameter.shape)})[0]
        for name, parameter in held.items()
        if name in names
    }


def trained(shape: dict[str, Any], way: dict[str, Any], folder: Path) -> dict[str, int]:
    """Train the stage in this process, whose pieces are put into `folder`; what was counted and measured, in bytes."""
    pieces = dict[str, str]()
    if "method" in way:
        with ProcessPoolExecutor(1, get_context("spawn")) as another:  # what drawing them takes is not this process's
            pieces = another.submit(write_pieces, shape, way, folder).result()

    import torch

    from dtfm_node.engine.adamw import AdamW
    from dtfm_node.engine.elementwise_update import UpdateSettings
    from dtfm_node.engine.training_stage import TrainingStage
    from dtfm_protocol.model.stage_demand import layers_demand
    from dtfm_protocol.plan.peer_state import Mark
    from dtfm_protocol.plan.plan import Plan
    from dtfm_protocol.wire.codecs import encode

    torch.set_num_threads(1)
    config, training = config_of(shape), training_of(way)
    plan = Plan(stages=((0, 1), (1, 1 + LAYERS), (1 + LAYERS, 2 + LAYERS)), routes=(("a", "b", "c"),))
    counted = layers_demand(config, training, (1, 1 + LAYERS), 1)
    warm = torch.nn.Parameter(torch.ones(512, 512))
    # What a first product and a first update load is no part of the stage.
    (warm @ warm).sum().backward()
    AdamW({"warm": warm}, UpdateSettings(0.0)).update(1, 0.0)
    del warm
    before = own_bytes(os.getpid())
    stage = TrainingStage(config, plan, "b", training, torch.device("cpu"))
    with watched() as reading:
        for name, parameter in stage.frozen.items():
            parameter.data.copy_(PieceFolder(folder).tensor(pieces[name], f"{WEIGHT}/{name}"))
    stage.initialise()
    hidden = encode(torch.randn(1, 16, shape["hidden_size"]), "fp32")
    with watched() as training_took:
        for step in range(1, STEPS + 1):
            stage.begin_step(lambda group: None)
            stage.forward(0, hidden, None)
            stage.backward(0, hidden)
            stage.prepare(Mark(step=step))
            stage.apply(1.0, None)
    return {
        "parameters": sum(one.numel() for one in (*stage.parameters.values(), *stage.frozen.values())),
        "trained": sum(one.numel() for one in stage.parameters.values()),
        "counted": counted.total - counted.activations,
        "measured": max(training_took) - before - counted.activations,
        "reading": max(reading) - before if stage.frozen else 0,
    }


HEADINGS = (
    "method",
    "optimizer",
    "weights",
    "parameters",
    "trained",
    "counted, bytes a parameter",
    "measured, bytes a parameter",
    "measured / counted",
    "while frozen weights are read, bytes a parameter",
)


def row(way: dict[str, Any], found: dict[str, int]) -> tuple[str, ...]:
    """A way as a row under `HEADINGS`."""
    return (
        way.get("method", "full"),
        way["optimizer"],
        way.get("weights", "fp32"),
        f"{found['parameters'] / 1e6:.1f} M",
        f"{found['trained'] / 1e6:.2f} M",
        f"{found['counted'] / found['parameters']:.2f}",
        f"{found['measured'] / found['parameters']:.2f}",
        f"{found['measured'] / found['counted']:.2f}",
        f"{found['reading'] / found['parameters']:.2f}" if found["reading"] else "",
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model, to try it out")
    parser.add_argument("--way", type=int, help="train this one, and print what it takes")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    shape = QUICK if options.quick else SHAPE
    with command_line.guarded():
        if options.way is not None:
            with tempfile.TemporaryDirectory(prefix="parameter-bytes-") as folder:
                print(json.dumps(trained(shape, WAYS[options.way], Path(folder))))
            return
        facts = machine()

        def measured(number: int) -> tuple[str, ...]:
            command = [sys.executable, "-m", "benchmarks.parameter_bytes", "--way", str(number)]
            command += ["--quick"] if options.quick else []
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            return row(WAYS[number], json.loads(done.stdout))

        with ThreadPoolExecutor(os.cpu_count()) as side_by_side:  # each looks at its own memory
            lines = list(side_by_side.map(measured, range(len(WAYS))))
        title = f"Bytes of a parameter: {LAYERS} layers of {shape['hidden_size']}, as a stage between others"
        show(title, HEADINGS, lines)
        asked = "python -m benchmarks.parameter_bytes" + (" --quick" if options.quick else "")
        ranks = f"Adapters have rank {LORA['r']}, beside {', '.join(LORA['target_modules'])}.\n"
        keep(
            options.out,
            "Bytes of a parameter",
            asked,
            [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines), ranks],
        )


if __name__ == "__main__":
    main()
