"""The largest model that a device trains, by its memory and the way of training: counted, nothing is run.

`python -m benchmarks.largest_model --out FILE` keeps the table. The family: llamas of `hidden / 128` layers, with heads
of 128 values, an intermediate size of 2.75 times the hidden one, and a vocabulary of 32,000 that the head does not
share; one sequence of 1,024 tokens a micro-batch, products in bf16, activations computed anew. The hidden size goes up
in steps of 128. Nine tenths of a device's memory are for training, as on the home machines of `dtfm-coordinator check`.
What is offloaded lies in the machine's memory, beside a GPU's, and is not looked at.
One device has the whole model; of eight alike, each has a stage, under 1F1B with enough micro-batches to fill it. Each
has as many layers as another, or one more, the last one too, which has the head: a plan may do better.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.tools.check.job_screen import FREE_PART
from dtfm_protocol.job.job_file import Model, Training
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage_demand import layers_demand
from dtfm_protocol.process import command_line

DEVICES_GB = (4, 8, 12, 24)
STAGES = (1, 8)
STEP, MOST = 128, 80
"""The hidden size's step, and the number of steps that are looked at."""
LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32.0, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
WAYS: dict[str, dict[str, Any]] = {
    "full, adamw": {},
    "full, adamw, offloaded": {"offload": "optimizer"},
    "full, sgd": {"optimizer": "sgd"},
    "full, adamw-8bit": {"optimizer": "adamw-8bit"},
    "full, adamw-8bit, weights in bf16": {"optimizer": "adamw-8bit", "weights": "bf16"},
    "lora": {"method": "lora", "lora": LORA},
}


def config_of(hidden: int) -> dict[str, Any]:
    """The family's config of a hidden size."""
    shape = {
        "architecture": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": max(1, hidden // 128),
        "num_attention_heads": hidden // 128,
        "num_key_value_heads": hidden // 128,
        "tie_word_embeddings": False,
    }
    return resolve_config(Model.model_validate(shape), 32_000, 1024)


def needed(hidden: int, way: str, stages: int) -> float:
    """Bytes that the most demanding of so many stages takes; infinite where there are fewer layers."""
    values = {"steps": 1, "global_batch": 64, "micro_batch": 1, "sequence_length": 1024, "learning_rate": 1e-4}
    training, config = Training.model_validate(values | {"precision": "bf16"} | WAYS[way]), config_of(hidden)
    layers = model_sizes(config).layers
    borders = [number * layers // stages for number in range(stages + 1)]
    if layers < stages:
        return float("inf")
    ends = {0, 1, stages - 1} & set(range(stages))
    return max(
        layers_demand(
            config, training, (borders[place], borders[place + 1]), stages - place, recompute=True, apart=True
        ).total
        for place in ends
    )


def largest(way: str, memory: float, stages: int) -> int:
    """The hidden size of the largest model; 0: there is none."""
    low, high = max(0, stages - 1), MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(STEP * middle, way, stages) <= memory else (low, middle)
    return STEP * low if low >= stages else 0


def words(hidden: int) -> str:
    """A model of the family, as it is called."""
    if not hidden:
        return "none"
    return f"{model_sizes(config_of(hidden)).total / 1e9:.2f} B (hidden {hidden:,}, {hidden // 128} layers)"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    headings = ("trained", *(f"{gigabytes} GB" for gigabytes in DEVICES_GB))
    parts = []
    with command_line.guarded():
        for stages in STAGES:
            title = "One device" if stages == 1 else f"Each of {stages} devices"
            lines = [
                (way, *(words(largest(way, gigabytes * 1e9 * FREE_PART, stages)) for gigabytes in DEVICES_GB))
                for way in track(WAYS, description=title, console=Console(stderr=True), transient=True)
            ]
            show(title, headings, lines)
            parts.append(markdown(title, headings, lines))
        said = (
            "Counted: llamas of hidden / 128 layers, heads of 128, intermediate 2.75 hidden, 32,000 tokens, untied; "
            f"1 x 1,024 tokens in bf16, recomputed; {FREE_PART:.0%} of a device's memory. Adapters have rank "
            f"{LORA['r']}, beside {', '.join(LORA['target_modules'])}. Offloaded: of a GPU, whose machine holds "
            "what the optimizer keeps.\n"
        )
        keep(options.out, "The largest model", "python -m benchmarks.largest_model", [said, *parts])


if __name__ == "__main__":
    main()
