"""Solo training of a job in one process: the plain training loop that every swarm is compared with, useful by itself.

It uses the whole model as `transformers` builds it, and shares with the swarm only what defines the mathematics:
initial weights, batches, learning rate, and AdamW's settings.
"""

import json
import math
import time
from pathlib import Path

import torch

from dtfm_node.control.display import Display
from dtfm_node.engine.bf16_weights import keep_in_bf16
from dtfm_node.engine.device import autocast
from dtfm_node.engine.elementwise_update import UpdateSettings
from dtfm_node.engine.gradient_norm import clip_factor, sum_of_squares
from dtfm_node.engine.micro_batches import MicroBatch, MicroBatches
from dtfm_node.engine.optimizers import optimizer_of
from dtfm_node.engine.state_tensors import load_tensor, state_tensors
from dtfm_protocol.checkpoint.base_pieces import FOLDER as BASE
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.shard import decode_tensor, describe_shard, encode_shard
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.amendment import Amendment
from dtfm_protocol.job.amendments_file import read_amendments
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import SetMetrics, StepMetrics
from dtfm_protocol.model.base_values import BaseValues
from dtfm_protocol.model.frozen_parameters import frozen_names
from dtfm_protocol.model.lora import add_adapters
from dtfm_protocol.model.stage import loss_sum, right_count
from dtfm_protocol.model.whole_model import build_whole
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.work_apart import wait_apart

KEPT = 2
"""Number of newest checkpoints that stay on disk."""


class Solo:
    """Training of a job in one process, on the whole model."""

    def __init__(
        self, job: ResolvedJob, folder: Path, device: torch.device, amendments: tuple[Amendment, ...] = ()
    ) -> None:
        """Build the model, with its initial weights.

        Args:
            amendments: changes of the job at certain steps, as a swarm that trained it has kept them.

        Raises:
            UserError: they do not fit the job.
            Refused: a piece of the weights that it begins with is not as it was made.
        """
        self._job, self._device = job, device
        self.timeline = JobTimeline(job, amendments)
        self._store = CheckpointStore(folder / "checkpoints")
        self._corpus = CorpusReader(job.corpus, ShardFolder(folder / "tokens"))
        self._read(1)
        self._model = build_whole(job.config, job.training.seed).train()
        values = BaseValues(job, PieceFolder(folder / BASE))
        frozen, held = frozen_names(job.config, job.training), dict(self._model.named_parameters())
        if job.training.method == "lora":
            held |= add_adapters(self._model, job.config, job.training.lora, torch.device("cpu"))
        with torch.no_grad():
            for name, parameter in held.items():
                parameter.copy_(values.value(name, tuple(parameter.shape)).decoded())
                parameter.requires_grad_(name not in frozen)
        self._model.to(device)
        self._parameters = {name: one for name, one in held.items() if name not in frozen}
        """What is trained."""
        if job.training.weights == "bf16":
            keep_in_bf16(self._model, own_products=False)
        self._optimizer = optimizer_of(job.training, self._parameters)

    def resume(self) -> int:
        """Load the newest checkpoint, if there is one, and return the step that the state is after (0: the initial
        weights)."""
        manifest = self._store.newest()
        if manifest is None or not manifest.step:
            return 0
        for key in self._optimizer.table.keys(self._parameters, manifest.step):
            tensor = decode_tensor(manifest.tensors[key], self._store.read(manifest, key))
            load_tensor(self._parameters, self._optimizer, key, tensor)
        return manifest.step

    def step(self, step: int) -> StepMetrics:
        """Run training step `step`, counted from 1, and the evaluation that is due after it."""
        begun = time.monotonic()
        training = self.timeline.settings_at(step).training
        if self.timeline.plan_end(step) != self._batches_end:
            self._read(step)
        targets, rate = self._micro_batches.targets(step), training.learning_rate_at(step)
        loss = norm = 0.0
        if targets:
            self._model.zero_grad(set_to_none=False)
            loss = math.fsum(self._micro_batch(step, index, targets) for index in range(training.micro_batches))
            gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
            norm = math.sqrt(math.fsum(map(sum_of_squares, gradients)))
            clip = clip_factor(norm, training.clip_norm)
            self._optimizer.update(step, rate, clip, UpdateSettings.of(training))
        else:
            self._optimizer.begin()
        seconds = time.monotonic() - begun
        evaluates = self.timeline.evaluates(step) and self._micro_batches.evaluation_targets > 0
        loss_of, sets = self._evaluate() if evaluates else (None, ())
        return StepMetrics(
            step=step,
            loss=loss / max(1, targets),
            tokens=targets,
            seconds=seconds,
            plan_version=0,
            learning_rate=rate,
            grad_norm=norm,
            predicted_seconds=None,
            eval_loss=loss_of,
            sets=sets,
            at=round(time.time(), 3),
        )

    def _read(self, step: int) -> None:
        """Read, from `step` on, the micro-batches of as many steps as a plan might have."""
        self._batches, self._batches_end = Batches.of_plan(self.timeline, step), self.timeline.plan_end(step)
        self._micro_batches = MicroBatches(self._batches, self._corpus, first=True, last=True)

    def _micro_batch(self, step: int, index: int, targets: int) -> float:
        loss = loss_sum(*self._foretold(self._micro_batches.of_step(step, index)))
        (loss / targets).backward()
        return float(loss.detach())

    @torch.no_grad()
    def _evaluate(self) -> tuple[float, tuple[SetMetrics, ...]]:
        """Return the loss on all that is held out, and the metrics of each set that has a name."""
        losses, right, files = list[float](), list[int](), self._micro_batches
        for index in range(self._batches.evaluation_micro_batches):
            logits, targets = self._foretold(files.of_evaluation(index))
            losses.append(float(loss_sum(logits, targets)))
            right.append(right_count(logits, targets))
        sets = tuple(
            SetMetrics.of(name, math.fsum(losses[at] for at in each), sum(right[at] for at in each), sum(each.values()))
            for name, each in zip(files.sets, files.set_targets, strict=True)
        )
        return math.fsum(losses) / files.evaluation_targets, sets

    def _foretold(self, micro_batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of a micro-batch, and its targets."""
        inputs, targets, positions = (one if one is None else one.to(self._device) for one in micro_batch)
        assert targets is not None, "solo has the last stage"
        with autocast(self._device, self._job.training.precision):
            places = {} if positions is None else {"position_ids": positions}
            return self._model(input_ids=inputs, **places, use_cache=False).logits, targets

    def keep(self, row: StepMetrics) -> None:
        """Write a checkpoint of the state after `row`'s step."""
        data = encode_shard(dict(state_tensors(self._parameters, self._optimizer)))
        file, tensors = describe_shard("stage-0.safetensors", data, (0, self._model.config.num_hidden_layers))
        manifest = Manifest(
            job=self._job.name,
            config=self._job.config,
            step=row.step,
            plan_version=0,
            files=(file,),
            tensors=tensors,
            eval_loss=row.eval_loss,
        )
        with self._store.draft(row.step) as draft:
            draft.add(file.name, data)
            draft.commit(manifest)
        self._store.prune(KEPT)


def run(job: Job, folder: Path, device: torch.device, display: Display, amendments: Path | None = None) -> None:
    """Train `job` to its last step in `folder`, from the newest checkpoint there on.

    Args:
        amendments: file of the changes of a run, which are made here, too; None: there are none.
    """
    resolved = wait_apart(lambda: prepare(job, folder, log.info))
    changes = tuple[Amendment, ...]()
    if amendments is not None:
        resolved, changes = _as_begun(resolved, amendments), read_amendments(amendments)
    try:
        solo = Solo(resolved, folder, device, changes)
    except Refused as error:
        raise UserError(f"the weights that the job begins with cannot be read: {error}; start it again") from None
    done = solo.resume()
    rows = MetricsFile(folder / "metrics.jsonl")
    rows.forget_after(done)
    if done >= solo.timeline.last_step:
        log.info("nothing is left to do: %s has been trained to its last step, %d, in %s", job.name, done, folder)
        return
    display.state("solo", f"training {job.name} in this process" + (f", on from step {done}" if done else ""))
    timeline, steps = solo.timeline, solo.timeline.last_step
    for step in range(done + 1, steps + 1):
        row = solo.step(step)
        rows.append(row, done)
        display.step(row, steps)
        if step == steps or timeline.keeps(step):
            solo.keep(row)


def _as_begun(job: ResolvedJob, amendments: Path) -> ResolvedJob:
    """Return a job as the run whose amendments these are has begun it, which lies beside them: its job file may have
    been edited since.

    Raises:
        UserError: that run is of another job.
    """
    path = amendments.parent / "job.json"
    if not path.exists():
        return job
    begun = ResolvedJob.read(json.loads(path.read_bytes()), str(path))
    if (begun.config, begun.corpus) != (job.config, job.corpus):
        raise UserError(f"{path} is of a run of another model or text: give the job file of that run")
    return begun
