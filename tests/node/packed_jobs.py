"""Jobs whose corpus has samples: documents packed side by side, of which a part of the tokens is learned."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.marks import BEGINS, TARGET
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.model_config import resolve_config
from tests.node.engine_swarm import LAYERS, VOCAB, corpus_tokens, job_of

LENGTH, STEPS = 16, 20
WINDOWS = len(corpus_tokens()) // LENGTH
OTHERS: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48},
    "qwen3": {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 16},
    "gpt2": {"num_attention_heads": 4},
}
"""Fields of small models by architecture, beside their layers and width."""


def packed_job(
    home: Path,
    *,
    empty: tuple[int, ...] = (),
    held_out_empty: bool = False,
    architecture: str = "llama",
    tied: bool = False,
    **training: Any,
) -> ResolvedJob:
    """A job of 20 steps on packed documents of 1 to 20 tokens, of most of which the latter part is learned.

    Args:
        empty: steps of which nothing is learned.
        held_out_empty: whether nothing that is held out is a target.
    """
    job = job_of(home, **{"steps": STEPS, "sequence_length": LENGTH} | training)
    fields = {"architecture": architecture, "hidden_size": 32, "num_hidden_layers": LAYERS}
    model = Model.model_validate(fields | OTHERS[architecture] | {"tie_word_embeddings": tied})
    marks = _marks()
    keys: dict[str, Any] = {"vocab_size": VOCAB, "shard_bytes": 512, "sequence_length": LENGTH}
    tokens = [corpus_tokens()[: len(marks)]]
    corpus = write_shards(home / "tokens", tokens, marks=marks, **keys)
    batches = Batches(corpus, job.training, job.evaluation)
    nothing = [start for step in empty for start in batches.windows(step)]
    nothing += batches.evaluation_windows() if held_out_empty else []
    for start in nothing:
        marks[start + 1 : start + 1 + LENGTH] &= BEGINS
    corpus = write_shards(home / "tokens", tokens, marks=marks, **keys)
    return job.model_copy(update={"config": resolve_config(model, VOCAB, LENGTH), "corpus": corpus})


def _marks() -> npt.NDArray[np.uint8]:
    """Marks of `WINDOWS` windows and one token more."""
    draw, marks = np.random.default_rng(11), np.zeros(WINDOWS * LENGTH + 1, np.uint8)
    first = 0
    while first < len(marks):
        length = int(draw.integers(1, 21))
        marks[first] = BEGINS
        if draw.random() < 0.8:
            marks[first + int(draw.integers(1, 8)) : first + length] |= TARGET
        first += length
    return marks
