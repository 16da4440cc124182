"""Card of a trained model: who has trained it and how, in the form that model hubs show.

The front matter is YAML, whose strings are written as JSON, which is YAML too. Names are their owners' choice: they
have letters, digits and few signs, so that none of them is markup.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dtfm_coordinator.records.member_records import Contribution, MemberRecords
from dtfm_coordinator.records.step_history import StepHistory
from dtfm_coordinator.serve.job_edits import NAME as SERVED
from dtfm_coordinator.tools.formatting import amount, duration, named
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import called
from dtfm_protocol.job import amendments_file
from dtfm_protocol.job.amendments_file import read_amendments
from dtfm_protocol.job.job_file import Job, Lora, OptimizerName, Sharing
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.process.product_version import product_version

NAME = "README.md"
"""Name of a card's file beside the model."""
OPTIMIZERS: dict[OptimizerName, str] = {
    "adamw": "AdamW",
    "adamw-8bit": "AdamW with moments in 8 bits",
    "sgd": "SGD with momentum",
}
"""What people call each optimizer."""
MEMBERS_NAMED = 200
"""Members that a card names, those with the greatest part; of the others it says how many there are."""


@dataclass(frozen=True)
class CardFacts:
    """What a card tells; whatever the state folder does not have is left out."""

    manifest: Manifest
    timeline: JobTimeline | None
    history: StepHistory
    """Steps that led to the checkpoint."""
    contributions: Mapping[str, Contribution]
    names: Mapping[str, str]
    """What members' machines are called, by peer id."""
    invite: Invite | None
    sharing: Sharing

    @classmethod
    def of(cls, state_dir: Path, manifest: Manifest) -> "CardFacts":
        """Read what a coordinator's state folder tells of the checkpoint that `manifest` describes."""
        path = state_dir / "metrics.jsonl"
        history, records = StepHistory(path), MemberRecords(state_dir)
        while records.take_up():
            pass
        history.take(row for row in MetricsFile(path).rows() if row.step <= manifest.step)
        contributions = {peer: one for peer, one in records.contributions(history.work).items() if one.steps}
        return cls(
            manifest, _timeline(state_dir), history, contributions, records.names, _invite(state_dir),
            _sharing(state_dir),
        )  # fmt: skip

    @property
    def lora(self) -> Lora | None:
        """The job's adapters; None: it trains the model itself."""
        training = self.timeline.job.training if self.timeline is not None else None
        return training.lora if training is not None and training.method == "lora" else None

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        if self.timeline is not None and self.timeline.job.training.method != "full":
            from dtfm_protocol.model.model_sizes import model_sizes

            return model_sizes(self.manifest.config).total  # what is not trained is not in the checkpoint
        return sum(prod(entry.shape) for key, entry in self.manifest.tensors.items() if key.startswith("weight/"))


def card(facts: CardFacts, *, merged: bool = True) -> str:
    """Return the card of a model, Markdown behind its front matter; or of its adapters, if they were trained and are
    not merged into it."""
    alone = facts.lora is not None and not merged
    parts = [_front_matter(facts, "peft" if alone else "transformers"), [""], _beginning(facts)]
    parts += [_use_adapters() if alone else _use(), _members(facts), _training(facts)]
    return "\n".join(chain.from_iterable(parts))


def _front_matter(facts: CardFacts, library: str) -> Iterator[str]:
    yield "---"
    yield f"library_name: {library}"
    yield "pipeline_tag: text-generation"
    if facts.sharing.license:
        yield f"license: {json.dumps(facts.sharing.license)}"
    yield "tags:"
    for tag in ("dtfm", "decentralized-training", str(facts.manifest.config.get("model_type", "")).replace("\n", " ")):
        if tag:
            yield f"- {json.dumps(tag)}"
    yield "---"


def _beginning(facts: CardFacts) -> Iterator[str]:
    job, timeline = facts.manifest.job, facts.timeline
    kind = json.dumps(str(facts.manifest.config.get("model_type", "language")))[1:-1]
    begun = "from pretrained weights" if timeline is not None and timeline.job.pretrained else "from random weights"
    count = len(facts.contributions)
    by = f" by {count} machine{'s' if count != 1 else ''} of volunteers" if count else ""
    of = f" of {timeline.last_step:,}" if timeline is not None else ""
    yield f"# {job}"
    yield ""
    yield (
        f"A {kind} language model with {amount(facts.parameters)} parameters, trained {begun}{by} with dtfm "
        f"{product_version()}. These are its weights after step {facts.manifest.step:,}{of}."
    )
    yield ""


def _training(facts: CardFacts) -> Iterator[str]:
    rows = _rows(facts)
    yield "## How it was trained"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, value in rows.items():
        yield f"| {name} | {value} |"
    yield ""
    if facts.timeline is not None:
        settings = facts.timeline.settings_at(max(1, facts.manifest.step))
        tables = {name: table.model_dump(mode="json") for name, table in settings._asdict().items()}
        yield "<details><summary>The job file's tables, as they were for the last of these steps</summary>"
        yield ""
        yield "```json"
        yield json.dumps(tables, indent=1)
        yield "```"
        yield ""
        yield "</details>"
        yield ""


def _rows(facts: CardFacts) -> dict[str, str]:
    history, timeline = facts.history, facts.timeline
    rows = {"Steps": f"{facts.manifest.step:,}"}
    if timeline is not None and timeline.job.training.layers is not None:
        first, end = timeline.job.training.layers
        rows["Not trained"] = f"decoder layers [{first}, {end}), which are as they began"
    if facts.lora is not None:
        rows["Trained"] = f"matrices of rank {facts.lora.r} beside {', '.join(facts.lora.target_modules)} (LoRA)"
    if history.last is not None:
        rows["Tokens read"] = f"{history.tokens:,}"
        rows["Loss in training"] = f"{history.last.loss:.4f} nats a token in step {history.last.step:,}"
    if history.evaluated is not None:
        rows["Loss on held-out text"] = (
            f"{history.evaluated.eval_loss:.4f} nats a token after step {history.evaluated.step:,}"
        )
        rows |= {f"On the set {one.name}": str(one) for one in history.evaluated.sets}
    elif facts.manifest.eval_loss is not None:
        rows["Loss on held-out text"] = f"{facts.manifest.eval_loss:.4f} nats a token"
    if history.last is not None:
        rows["Time in steps"] = duration(sum(work.seconds for work in history.work.values()))
    if timeline is not None:
        training, corpus = timeline.training_at(max(1, facts.manifest.step)), timeline.job.corpus
        rows["Text"] = f"{corpus.tokens:,} tokens of a vocabulary of {corpus.vocab_size:,}"
        rows["A step"] = f"{training.global_batch:,} sequences of {training.sequence_length:,} tokens"
        rows["Optimizer"] = (
            f"{OPTIMIZERS[training.optimizer]}, learning rate {training.learning_rate:g} at its peak "
            f"({training.schedule}), weight decay {training.weight_decay:g}, "
            f"gradients clipped to a norm of {training.clip_norm:g}"
        )
        rows["Arithmetic"] = f"{training.precision}, weights kept in {training.weights}"
        rows["Seed"] = str(training.seed)
        if timeline.amendments:
            rows["Changed while it trained"] = f"{len(timeline.amendments)} times; the last values are above"
    return rows


def _members(facts: CardFacts) -> Iterator[str]:
    found = sorted(facts.contributions.items(), key=lambda one: (-one[1].layer_tokens, one[0]))
    if not found:
        return
    whole = sum(one.layer_tokens for _, one in found)
    yield "## Who trained it"
    yield ""
    yield "Thank you. The part of a machine is its tokens times its layers, of those of all machines."
    yield ""
    yield "| machine | part | steps |"
    yield "|---|---:|---:|"
    for peer, one in found[:MEMBERS_NAMED]:
        name = called(peer, facts.names[peer]) if peer in facts.names else named(peer)
        yield f"| {name} | {100 * one.layer_tokens / whole:.1f} % | {one.steps:,} |"
    if (more := len(found) - MEMBERS_NAMED) > 0:
        yield f"| and {more:,} more | {_rest(found, whole)} | |"
    yield ""
    if facts.invite is not None:
        yield f"The swarm is {facts.invite.swarm}, its coordinator {facts.invite.coordinator}. Each member has a record"
        yield "of its part that the coordinator has signed; anybody can check one:"
        yield f"`dtfm-node contribution --check FILE --coordinator {facts.invite.coordinator}`."
        yield ""


def _rest(found: list[tuple[str, Contribution]], whole: float) -> str:
    return f"{100 * sum(one.layer_tokens for _, one in found[MEMBERS_NAMED:]) / whole:.1f} %"


def _use() -> Iterator[str]:
    yield "## How to use it"
    yield ""
    yield "```python"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield ""
    yield 'folder = "."  # this folder'
    yield "model = AutoModelForCausalLM.from_pretrained(folder)"
    yield from _generate()


def _use_adapters() -> Iterator[str]:
    yield "## How to use it"
    yield ""
    yield "These are adapters (LoRA): matrices that are added to those of the model that they were trained beside."
    yield ""
    yield "```python"
    yield "from peft import PeftModel"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield ""
    yield 'folder, base = ".", "model"  # this folder, and that of the model'
    yield "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)"
    yield from _generate()


def _generate() -> Iterator[str]:
    yield "tokenizer = AutoTokenizer.from_pretrained(folder)"
    yield 'begin = tokenizer("The ", return_tensors="pt")'
    yield "text = model.generate(**begin, max_new_tokens=100, do_sample=True)"
    yield "print(tokenizer.decode(text[0]))"
    yield "```"
    yield ""
    yield "It repeats what its text was like; nobody has looked at what it may say."
    yield ""


def _timeline(state_dir: Path) -> JobTimeline | None:
    try:
        job = ResolvedJob.model_validate_json((state_dir / "job.json").read_bytes())
    except (OSError, ValidationError):
        return None
    path = state_dir / amendments_file.NAME
    try:
        return JobTimeline(job, read_amendments(path) if path.exists() else ())
    except UserError:
        return JobTimeline(job)


def _invite(state_dir: Path) -> Invite | None:
    try:
        return Invite.decode((state_dir / "invite").read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError, UserError):
        return None


def _sharing(state_dir: Path) -> Sharing:
    try:
        values: Any = json.loads((state_dir / SERVED).read_bytes())
        return Job.model_validate(values).sharing
    except (OSError, ValueError):
        return Sharing()
