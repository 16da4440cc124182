"""Is fine-tuning here what the field's own tools do? `dtfm-node solo` beside a plain loop of transformers and peft.

    python -m benchmarks.field_tools [--steps 20] [--out benchmarks/results/field_tools.md]

Both train the same small model on the same batches: on all tokens of a stream, and on documents packed into sequences,
of which a part is learned; all weights, or LoRA. The loop has torch's AdamW and clip, and the loss of transformers. For
each: the largest relative difference of a step's loss, and of any packed document's loss to itself run alone. Exits
with 1 if one is beyond 1e-5.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.tables import keep, markdown, show
from dtfm_node.commands.solo import Solo
from dtfm_node.engine.micro_batches import MicroBatch, MicroBatches
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.model.model_config import build_config

LIMIT = 1e-5
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"head_dim": 32},
    "gpt2": {"hidden_size": 64, "num_attention_heads": 4},
}
TARGETS = {"llama": ["q_proj", "v_proj"], "qwen3": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}
METHODS = ("full", "lora")
DATA = ("stream", "samples")
HEADINGS = ("model", "method", "data", "targets of a step", "loss of a step", "a document beside itself alone")


def job_of(folder: Path, architecture: str, method: str, data: str, steps: int) -> ResolvedJob:
    """Prepare a job in `folder`."""
    rows = [{"prompt": f"{number} and {number + 7} are ", "completion": f"{2 * number + 7}."} for number in range(600)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = {"path": str(folder / "sums.jsonl"), "kind": "completions"}
    training: dict[str, Any] = {"steps": steps, "global_batch": 8, "micro_batch": 2, "sequence_length": 64}
    training |= {"learning_rate": 3e-3, "warmup_steps": 4, "method": method}
    if method == "lora":
        training["lora"] = {"r": 4, "lora_alpha": 8.0, "target_modules": TARGETS[architecture]}
    job = {
        "name": "field-tools",
        "model": {"architecture": architecture, "num_hidden_layers": 3} | MODELS[architecture],
        "data": {"text": "cpython"} if data == "stream" else {"sources": [source], "packing": True},
        "training": training,
    }
    return prepare(Job.read(job, "job"), folder, lambda line: None)


def begun(job: ResolvedJob) -> PreTrainedModel:
    """Return the model with a job's initial weights, as transformers and peft make it."""
    model: Any = AutoModelForCausalLM.from_config(build_config(job.config), dtype=torch.float32)
    if job.training.method == "lora":
        lora, transposed = job.training.lora, job.config["model_type"] == "gpt2"
        keys: dict[str, Any] = {"r": lora.r, "lora_alpha": lora.lora_alpha, "target_modules": list(lora.target_modules)}
        model = get_peft_model(model, LoraConfig(**keys, fan_in_fan_out=transposed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            plain = name.replace(".default.", ".")
            if "lora_" not in name:
                plain = plain.removeprefix("base_model.model.").replace(".base_layer.", ".")
            parameter.copy_(initial_value(job.config, job.training.seed, plain, parameter.shape))
    made: PreTrainedModel = model.train()
    return made


def plain_losses(job: ResolvedJob, model: PreTrainedModel, files: MicroBatches) -> Iterator[float]:
    """Train a model by a plain loop, and yield the loss of each step."""
    training = job.training
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [one for one in trained if one.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=training.betas, eps=training.eps)
    for step in range(1, training.steps + 1):
        optimizer.zero_grad()
        total = 0.0
        for index in range(training.micro_batches):
            one = files.of_step(step, index)
            assert one.targets is not None
            targets = one.targets.contiguous()
            keys = {"labels": targets, "shift_labels": targets, "num_items_in_batch": files.targets(step)}
            loss = model(input_ids=one.inputs, position_ids=one.positions, use_cache=False, **keys).loss
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(trained, training.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate_at(step)
        optimizer.step()
        yield total


@torch.no_grad()
def apart(model: PreTrainedModel, packed: MicroBatch) -> float:
    """Return the largest relative difference of a packed document's summed loss to that of it run alone."""
    assert packed.inputs is not None
    assert packed.targets is not None
    assert packed.positions is not None
    logits = model(input_ids=packed.inputs, position_ids=packed.positions, use_cache=False).logits
    worst = 0.0
    for row, (inputs, targets, places) in enumerate(zip(packed.inputs, packed.targets, packed.positions, strict=True)):
        begins = [*(places == 0).nonzero().flatten().tolist(), len(places)]
        for first, end in itertools.pairwise(begins):
            alone = model(input_ids=inputs[None, first:end], use_cache=False).logits[0]
            losses = [
                float(torch.nn.functional.cross_entropy(one, targets[first:end], reduction="sum"))
                for one in (logits[row, first:end], alone)
            ]
            if losses[1]:
                worst = max(worst, abs(losses[0] - losses[1]) / losses[1])
    return worst


def measure(architecture: str, method: str, data: str, steps: int) -> tuple[tuple[str, ...], float]:
    """Return a row under `HEADINGS`, and the larger of its differences."""
    with tempfile.TemporaryDirectory(prefix="field-tools-") as name:
        folder = Path(name)
        job = job_of(folder, architecture, method, data, steps)
        corpus = CorpusReader(job.corpus, ShardFolder(folder / "tokens"))
        files = MicroBatches(Batches(job.corpus, job.training, job.evaluation), corpus, first=True, last=True)
        solo, model = Solo(job, folder, torch.device("cpu")), begun(job)
        ours = [solo.step(step).loss for step in range(1, steps + 1)]
        theirs = list(plain_losses(job, model, files))
        loss = max(abs(one - other) / other for one, other in zip(ours, theirs, strict=True))
        document = apart(model, files.of_step(1, 0)) if data == "samples" else None
        counts = sorted({files.targets(step) for step in range(1, steps + 1)})
    targets = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    alone = "" if document is None else f"{document:.1e}"
    return (architecture, method, data, targets, f"{loss:.1e}", alone), max(loss, document or 0.0)


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    found = [
        measure(architecture, method, data, options.steps)
        for architecture in MODELS
        for method in METHODS
        for data in DATA
    ]
    rows = [row for row, _ in found]
    title = f"Largest relative differences over {options.steps} steps, fp32"
    show(title, HEADINGS, rows)
    command = f"python -m benchmarks.field_tools --steps {options.steps}"
    keep(options.out, "Beside transformers and peft", command, [markdown(title, HEADINGS, rows)])
    if max(worst for _, worst in found) > LIMIT:
        raise SystemExit(f"beyond {LIMIT:g}")


if __name__ == "__main__":
    main()
