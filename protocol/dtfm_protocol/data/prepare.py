"""The preparation of a job: its tokenizer, token shards, the model's config and pretrained weights."""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dtfm_protocol
from dtfm_protocol.checkpoint.base_pieces import FOLDER as BASE
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.data.batches import Batches, check_held_out
from dtfm_protocol.data.held_out_sets import set_files
from dtfm_protocol.data.preparing_journal import FOLDER as JOURNAL
from dtfm_protocol.data.preparing_journal import PreparingJournal
from dtfm_protocol.data.source_files import files_read
from dtfm_protocol.data.text_check import check_encoding, check_sample, check_text_bytes
from dtfm_protocol.data.token_shards import ShardFolder, corpus_files
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.data.tokenizer import save, vocabulary_size
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.job_limits import check_limits
from dtfm_protocol.job.resolved_job import BasePiece, Corpus, ResolvedJob
from dtfm_protocol.process.source_digest import sources_digest
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import needs_of

MATHEMATICS = ("name", "config", "pretrained", "corpus", "training")
"""Fields of `ResolvedJob` that must not change between the runs of one state dir, but for keys that are told."""
SAY_SECONDS = 10.0
"""Time between two words on how far the reading of weights is."""
STEPS = ("training.steps", "training.schedule_end")
"""Keys that say how long a job trains."""


def is_prepared(job: Job, folder: Path) -> bool:
    """Whether `folder` was made from this very job and its files, as far as its stamp says; no shard is looked at.

    Raises:
        UserError: a glob of the job matches no file.
    """
    stamp = _stamp(job)
    try:
        return (folder / "prepared").read_text(encoding="ascii").split()[:1] == [stamp]
    except (OSError, ValueError):
        return False


def settled_config(job: Job) -> dict[str, Any]:
    """Return the model's config of a job, after all checks of it that need no text.

    Raises:
        UserError: the tokenizer cannot be made, the model cannot be trained in stages, or on packed documents where
            the data is that, or its folder's weights are not its own.
    """
    # Seconds of importing that who comes back is spared.
    from dtfm_protocol.model.frozen_parameters import check_frozen
    from dtfm_protocol.model.model_config import resolve_config
    from dtfm_protocol.model.packing_check import check_packable
    from dtfm_protocol.model.pretrained_weights import check_weights, has_weights
    from dtfm_protocol.model.slicing_check import TESTED, check_sliceable

    config = resolve_config(job.model, vocabulary_size(job.data), job.training.sequence_length)
    if config["model_type"] not in TESTED:
        check_sliceable(config)
    if job.data.is_laid_out:
        check_packable(config, job.training.sequence_length)
    check_frozen(config, job.training)
    if (folder := job.model.folder) is not None and has_weights(folder):
        check_weights(folder, config)
    return config


def prepare(
    job: Job, folder: Path, say: Callable[[str], Any], *, alterable: Collection[str] = STEPS, keeps_first: bool = False
) -> ResolvedJob:
    """Make everything that `job` needs, in `folder`: `tokens/`, `tokenizer/`, `job.json`, and `base/` with the pieces
    of pretrained weights.

    Where all of it is there, whole, and made from the same job and files, no text is read again: peers wait for a
    coordinator that comes back into a run. Elsewhere what needs no text is checked before any is read.

    Args:
        say: a function that is told in a sentence what is being done, now and then.
        alterable: keys in which `job` may differ from the one for which `folder` was prepared.
        keeps_first: whether that one stays as it was, and is returned.

    Raises:
        UserError: the job cannot be trained, or `folder` belongs to another one.
    """
    stamp, settled = _stamp(job), _stamp(job, without=alterable)
    if (before := _made_before(folder, stamp, settled if keeps_first else None)) is not None:
        return before
    first, config = _prepared_for(folder), _checked_config(job, say)
    if first is not None:  # before weights and text are read, which may take long
        _compare(first, _resolved(job, config, first.corpus), folder, alterable)
    journal = PreparingJournal(folder / JOURNAL, _text_stamp(job))
    if journal.is_outdated:
        say("What an earlier start has made is of another text, job or version of dtfm: beginning anew.")
    if not journal.is_begun:
        check_encoding(job)
        check_sample(job, folder, say)
    ShardFolder(folder / "tokens").clear_drafts()
    base = _base(job, config, folder, first, say)
    same_as = first.corpus if first is not None else None
    training = job.training
    made = tokenize(
        job.data,
        folder / "tokens",
        say,
        same_as,
        seed=training.seed,
        sequence_length=training.sequence_length,
        sets=job.evaluation.sets,
        set_sequences=job.evaluation.sequences,
        journal=journal,
    )
    corpus = made.corpus
    Batches(corpus, job.training, job.evaluation)  # says at once when the text is too short
    check_held_out(corpus.tokens, made.repeated, job.training, job.evaluation)
    resolved = _resolved(job, config, corpus, base)
    if first is not None:
        _compare(first, resolved, folder, alterable)
        resolved = _with_base(first, base) if keeps_first else resolved
    (folder / "prepared").unlink(missing_ok=True)
    save(made.tokenizer, folder / "tokenizer")
    write_atomically(folder / "job.json", resolved.model_dump_json(indent=1))
    write_atomically(folder / "prepared", f"{stamp}\n{_digest(_made(folder))}\n{settled}\n")
    journal.end()
    shards = ShardFolder(folder / "tokens")
    shards.keep_only(corpus_files(resolved.corpus, shards))  # not what was begun with another text
    return resolved


def _stamp(job: Job, without: Collection[str] = ()) -> str:
    """Hash all that a prepared folder is made from: the job but for some keys, its files as they lie there, and the
    programs."""
    values: dict[str, Any] = job.model_dump(mode="json")
    for key in without:
        *path, last = key.split(".")
        table = values
        for name in path:
            table = table[name]
        table.pop(last, None)
    return _stamp_of(job, values)


def _text_stamp(job: Job) -> str:
    """Hash all that the tokens are made from."""
    values = {"data": job.data.model_dump(mode="json"), "seed": job.training.seed}
    if job.evaluation.sets:
        values["evaluation"] = job.evaluation.model_dump(mode="json", include={"sets", "sequences"})
    is_cut = job.data.is_laid_out or job.evaluation.sets
    return _stamp_of(job, values | {"sequence_length": job.training.sequence_length if is_cut else 0})


def _stamp_of(job: Job, values: dict[str, Any]) -> str:
    """Hash values with a job's files as they lie there, and the programs."""
    folders = [folder for folder in (job.model.folder, job.data.tokenizer_folder) if folder is not None]
    read = files_read(job.data) + set_files(job.data, job.evaluation.sets)
    files = read + sorted(file for folder in folders for file in folder.glob("*") if file.is_file())
    seen = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    programs = [platform.python_version(), sources_digest(*map(Path, dtfm_protocol.__path__))]
    programs += map(version, ("transformers", "tokenizers"))
    return hashlib.sha256(json.dumps([values, seen, programs]).encode()).hexdigest()


def _made_before(folder: Path, stamp: str, settled: str | None) -> ResolvedJob | None:
    """Return the job for which `folder` was prepared, if from the same `stamp`, or from one that is the same in what is
    `settled` for good, and all of it is still there."""
    shards, pieces = ShardFolder(folder / "tokens"), PieceFolder(folder / BASE)
    try:
        made_from, digest, had_settled = (folder / "prepared").read_text(encoding="ascii").split()
        if digest != _digest(_made(folder)) or (made_from != stamp and had_settled != settled):
            return None
        job = ResolvedJob.model_validate_json((folder / "job.json").read_bytes())
    except (OSError, ValueError):
        return None
    has_base = all(pieces.has(piece.sha256) for piece in job.base)
    return job if has_base and _is_whole(job.corpus, shards) else None


def _is_whole(corpus: Corpus, shards: ShardFolder) -> bool:
    """Whether all files of a corpus are here and whole."""
    try:
        return all(shards.has(sha256) for sha256 in corpus_files(corpus, shards))
    except Refused:  # a chapter is not what the job says
        return False


def _made(folder: Path) -> list[Path]:
    """List the small files of a prepared folder."""
    return [folder / "job.json", *sorted(file for file in (folder / "tokenizer").rglob("*") if file.is_file())]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _checked_config(job: Job, say: Callable[[str], Any]) -> dict[str, Any]:
    """Return the model's config of a job, after all checks that need no text."""
    check_limits(job.training, job.evaluation, len(job.evaluation.sets))
    check_text_bytes(job)
    from dtfm_protocol.model.model_config import dropout_in_words

    say("Checking the model.")
    config = settled_config(job)
    if words := dropout_in_words(job.model):
        say(f"{words}.")
    return config


def _resolved(job: Job, config: dict[str, Any], corpus: Corpus, base: tuple[BasePiece, ...] = ()) -> ResolvedJob:
    """Return the job as peers see it."""
    resolved = ResolvedJob(
        name=job.name,
        config=config,
        pretrained=job.model.folder is not None and any(job.model.folder.glob("*.safetensors")),
        corpus=corpus,
        training=job.training,
        evaluation=job.evaluation.told,
        plan=job.plan,
        checkpoint=job.checkpoint,
    )
    return _with_base(resolved, base)


def _with_base(job: ResolvedJob, base: tuple[BasePiece, ...]) -> ResolvedJob:
    job = job.model_copy(update={"base": base})
    return job.model_copy(update={"needs": needs_of(job)})


def _prepared_for(folder: Path) -> ResolvedJob | None:
    """Return the job that `folder` was made for; None: for none yet."""
    path = folder / "job.json"
    if not path.exists():
        return None
    try:
        return ResolvedJob.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; use another --state-dir") from None


def _compare(first: ResolvedJob, job: ResolvedJob, folder: Path, alterable: Collection[str]) -> None:
    """Refuse to go on with another job than `folder` was made for, but for `alterable` keys."""
    before, now = json.loads(first.model_dump_json()), json.loads(job.model_dump_json())
    for values in (before, now):
        for key in list(values["training"]):
            if f"training.{key}" in alterable:
                del values["training"][key]
    for part in MATHEMATICS:
        if before[part] != now[part]:
            changed = [key for key in now[part] if before[part].get(key) != now[part][key]] if part != "name" else []
            where = ".".join([part, *changed[:1]])
            raise UserError(
                f"the state dir {folder} holds a run of another job ({where} differs): use another --state-dir; "
                "`dtfm-coordinator fork` begins a new job with the weights of a run"
            )


def _base(
    job: Job, config: dict[str, Any], folder: Path, first: ResolvedJob | None, say: Callable[[str], Any]
) -> tuple[BasePiece, ...]:
    """Turn the weights in the model's folder into pieces, one after the other, and name them; () where it has none.

    Raises:
        UserError: they do not fit the model's config, or are not those with which a run in `folder` has begun.
    """
    source, pieces = job.model.folder, PieceFolder(folder / BASE)
    if source is None or not any(source.glob("*.safetensors")):
        return ()
    from dtfm_protocol.model.base_forms import base_forms
    from dtfm_protocol.model.base_source import read_parts
    from dtfm_protocol.model.base_values import piece_tensors

    say(f"Reading the weights to begin with, in {source}.")
    forms, wanted, said = base_forms(config, job.training), first.base if first is not None else (), time.monotonic()
    made: list[BasePiece] = []
    layers = 0
    for number, values in enumerate(read_parts(source, config)):
        sha256, size = pieces.write(piece_tensors(values, forms))
        layers = max(layers, number)
        if wanted and (number >= len(wanted) or wanted[number].sha256 != sha256):
            pieces.drop(sha256)
            raise UserError(
                f"the weights in {source} are not those that the run in {folder} has begun with: give those again, or "
                "use another --state-dir"
            )
        made.append(BasePiece(sha256=sha256, bytes=size, layers=(max(number - 1, 0), number)))
        if time.monotonic() > said + SAY_SECONDS:
            said = time.monotonic()
            say(f"{number} layers' weights are read.")
    made[-1] = made[-1].model_copy(update={"layers": (layers - 1, layers - 1)})
    pieces.keep_only(piece.sha256 for piece in made)
    return tuple(made)
