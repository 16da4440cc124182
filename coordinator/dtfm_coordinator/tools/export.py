"""Export of a checkpoint as a folder that `transformers` loads, with a card that says who has trained it and how."""

import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dtfm_coordinator.serve.job_edits import NAME as SERVED
from dtfm_coordinator.tools import model_card
from dtfm_coordinator.tools.adapter_folder import base_of, given_model, write_adapters
from dtfm_coordinator.tools.model_card import CardFacts, card
from dtfm_protocol.checkpoint.base_pieces import FOLDER as BASE
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.data import tokenizer as tokenizers
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.quiet_loading import no_progress_bar
from dtfm_protocol.process.logs import log

CHECKPOINTS = "checkpoints"
"""Name of the folder of checkpoints in a state dir."""
TOKENIZER = "tokenizer"
"""Name of the folder of the job's tokenizer in a state dir."""


def export(state_dir: Path, out: Path, step: int | None = None, *, merge: bool = False) -> Manifest:
    """Write a checkpoint to `out`, for `AutoModelForCausalLM` and `AutoTokenizer`; of a job that trains adapters
    (LoRA) these alone, for `PeftModel`.

    `out` appears when all of it is written. A coordinator may be running on `state_dir`.

    Args:
        step: that of the checkpoint; None: the newest one.
        merge: whether the whole model is written in any case, with what adapters add.

    Returns:
        The manifest of the checkpoint.

    Raises:
        UserError: there is no checkpoint or no tokenizer, `out` is there and not empty, or cannot be written.
    """
    out = out.absolute()
    _check_free(out)
    if (job := _job_of(state_dir)) is not None and job.training.method == "lora" and not merge:
        store, manifest, tokenizer = _opened(state_dir, step)
        base = base_of(state_dir / SERVED)

        def write(folder: Path) -> None:
            write_adapters(job, base, store, manifest, folder)
    else:
        given = given_model(state_dir / SERVED) if merge else None
        model, tokenizer, manifest = load_checkpoint(state_dir, step, given, merge=merge)
        _set_token_ids(model, tokenizer)

        def write(folder: Path) -> None:
            with no_progress_bar():
                model.save_pretrained(str(folder))

    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        try:
            draft.mkdir(parents=True)
            write(draft)
            tokenizer.save_pretrained(str(draft))
            _check_tokenizer(tokenizer, draft)
            (draft / model_card.NAME).write_text(
                card(CardFacts.of(state_dir, manifest), merged=merge), encoding="utf-8"
            )
            draft.rename(out)  # replaces an empty folder
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {out}: {error}: free some space or choose another folder") from None
    return manifest


def load_checkpoint(
    state_dir: Path, step: int | None = None, given: Path | None = None, *, merge: bool = False
) -> tuple[Any, Any, Manifest]:
    """Return the model of a whole checkpoint, its tokenizer and its manifest.

    The model is on the CPU in the checkpoint's own precision, ready for inference. At no time is there a second copy of
    its weights in memory.

    Args:
        step: that of the checkpoint; None: the newest one.
        given: the folder of the model with which the job begins; None: it is not known.
        merge: whether adapters that were trained beside int8 weights are merged into those that were given, and not
            into the rounded ones that they were trained beside.

    Raises:
        UserError: there is no such checkpoint or no tokenizer, or the checkpoint does not fit its config, or what was
            given is not there any more, or is another model.
    """
    from dtfm_protocol.model.base_values import frozen_values, unrounded_values

    store, manifest, tokenizer = _opened(state_dir, step)
    job, pieces = _job_of(state_dir), PieceFolder(state_dir / BASE)
    untrained: Iterable[tuple[str, Any]] = ()
    if job is not None:
        rounded = merge and job.training.lora.base == "int8"
        untrained = unrounded_values(job, pieces, given) if rounded else frozen_values(job, pieces)
    return _build(store, manifest, job, untrained), tokenizer, manifest


def _opened(state_dir: Path, step: int | None) -> tuple[CheckpointStore, Manifest, Any]:
    """Return the checkpoints of a state folder, the manifest of one of them, and the tokenizer."""
    store = CheckpointStore(state_dir / CHECKPOINTS, sweep=False)
    manifest = store.newest() if step is None else _of_step(store, step)
    if manifest is None:
        raise UserError(
            f"there is no checkpoint in {state_dir / CHECKPOINTS}: "
            "train until the first one is kept, or name another --state-dir"
        )
    return store, manifest, tokenizers.load(state_dir / TOKENIZER)


def _job_of(state_dir: Path) -> ResolvedJob | None:
    """Return the job of a state folder; None where it is not there, as in one that a run has not made."""
    try:
        return ResolvedJob.model_validate_json((state_dir / "job.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {state_dir / 'job.json'}: {error}") from None


def _of_step(store: CheckpointStore, step: int) -> Manifest:
    try:
        if step in store.steps():
            return store.whole(step)
    except Refused as error:
        raise UserError(f"the checkpoint of step {step} cannot be used: {error}") from None
    raise UserError(f"there is no checkpoint of step {step}: `dtfm-coordinator checkpoints list` shows those there are")


def _build(
    store: CheckpointStore, manifest: Manifest, job: ResolvedJob | None, untrained: Iterable[tuple[str, Any]]
) -> Any:
    """Return the model: what was trained, of the checkpoint, and what was not, as the job began."""
    from dtfm_protocol.model.lora import merge_adapters
    from dtfm_protocol.model.whole_model import build_skeleton

    model = build_skeleton(manifest.config)
    try:
        weights = dict(store.tensors(manifest))
        weights |= dict(untrained)
        if job is not None and job.training.method == "lora":
            weights = merge_adapters(job.config, job.training.lora, weights)
    except Refused as error:
        raise UserError(f"cannot load the model: {error}: try again") from None
    # Tied weights are one parameter, under its first name.
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    try:
        unknown = model.load_state_dict(weights, strict=False, assign=True).unexpected_keys
    except RuntimeError as error:
        fault = str(error).strip().split("\n")[-1].strip()
        raise UserError(f"the checkpoint of step {manifest.step} does not fit its config: {fault}") from None
    if unknown or missing:
        fault = f"lacks {missing[0]}" if missing else f"has {unknown[0]}, which the model has not"
        raise UserError(f"the checkpoint of step {manifest.step} does not fit its config: it {fault}")
    model.tie_weights()
    model.config.dtype = next(model.parameters()).dtype
    return model.eval()


def _set_token_ids(model: Any, tokenizer: Any) -> None:
    """Set where a text ends, for `generate` of `transformers`: training has no use for it, so that the config is
    silent."""
    from transformers import GenerationConfig

    end = tokenizer.eos_token_id
    begin = tokenizer.bos_token_id
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
    model.config.bos_token_id, model.config.eos_token_id = begin, end
    model.config.use_cache = True
    model.generation_config = GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=pad, use_cache=True)


def _check_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Warn where `AutoTokenizer` does not give back the tokenizer that the model was trained with.

    For a few architectures, qwen2 among them, it sets its own class above what the folder says, and that class splits
    words its own way.
    """
    loaded = tokenizers.load(folder)
    if getattr(tokenizer, "backend_tokenizer", None) is None or type(loaded) is type(tokenizer):
        return
    if loaded.backend_tokenizer.to_str() != tokenizer.backend_tokenizer.to_str():
        log.warning(
            "AutoTokenizer loads a %s for this architecture, which splits text in another way than training did: "
            "load the tokenizer with PreTrainedTokenizerFast.from_pretrained",
            type(loaded).__name__,
        )


def _check_free(out: Path) -> None:
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is there already: choose a folder that is empty or not there")
    except OSError as error:
        raise UserError(f"cannot read {out}: {error.strerror}") from None
