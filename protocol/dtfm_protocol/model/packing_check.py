"""The check that an architecture keeps documents apart that are packed into one sequence, or else it is refused for
such jobs."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from dtfm_protocol.errors import UserError
from dtfm_protocol.model.initial_weights import standard_normal
from dtfm_protocol.model.model_config import one_line
from dtfm_protocol.model.random_state import random_state_kept
from dtfm_protocol.model.slicing_check import cut, is_close
from dtfm_protocol.model.tiny_model import TINY_VOCAB, tiny_config
from dtfm_protocol.model.whole_model import BUILD_ERRORS, build_whole

DOCUMENTS = ((1, 7, 4, 2), (6, 8))
"""Lengths of the documents in each of two sequences: of one token alone, and longer than the tiny model's window."""
ORIGINAL_REACH = "original_max_position_embeddings"
"""Name of the positions beyond which some rotary tables are made for all of a batch by its longest document."""
TINY_REACH = 5
"""The same of the tiny model, where a job's documents may be longer: between the lengths of its documents."""


def check_packable(config: dict[str, Any], sequence_length: int) -> None:
    """Refuse a resolved config whose architecture does not take documents packed into one sequence for themselves.

    At tiny size, the whole model and 1, 2 and 3 stages of it must give each of several packed documents the logits that
    the whole model gives it alone. Takes well under a second.

    Args:
        sequence_length: tokens of the longest document that there may be.

    Raises:
        UserError: the architecture does not keep them apart; one line has the reason.
    """
    tiny = _of_small_reach(tiny_config(config), sequence_length)
    try:
        with random_state_kept():
            reason = _difference(tiny)
    except BUILD_ERRORS as error:
        reason = f"fails with {type(error).__name__}: {one_line(error)}"
    if reason is not None:
        raise UserError(
            f"model: {config['model_type']!r} cannot be trained on documents that are packed into one sequence: it "
            f"{reason}; choose another architecture, or plain text"
        )


def _difference(config: dict[str, Any]) -> str | None:
    """Say what an architecture does wrong with packed documents; None: nothing."""
    whole = build_whole(config, seed=0)
    state = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in state.items():  # far from any constant, so that every parameter counts
            parameter.add_(standard_normal(0, name, parameter.shape), alpha=0.1)
        inputs = torch.arange(len(DOCUMENTS) * sum(DOCUMENTS[0])).mul(37).add(11).remainder(TINY_VOCAB)
        inputs = inputs.view(len(DOCUMENTS), -1)
        positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in DOCUMENTS])
        wanted = _each_alone(whole, inputs)
        if not is_close(whole(input_ids=inputs, position_ids=positions, use_cache=False).logits, wanted):
            return "gives a document other logits beside others than alone"
        if wrong := next(_stages_that_differ(config, state, inputs, positions, wanted), None):
            return f"gives a document other logits beside others than alone, in {wrong} stages"
    return None


def _each_alone(whole: PreTrainedModel, inputs: torch.Tensor) -> torch.Tensor:
    """Return the logits of all documents, each run by itself, in the places that they have in `inputs`."""
    rows = []
    for row, lengths in zip(inputs, DOCUMENTS, strict=True):
        logits = [whole(input_ids=one[None], use_cache=False).logits[0] for one in row.split(list(lengths))]
        rows.append(torch.cat(logits))
    return torch.stack(rows)


def _stages_that_differ(
    config: dict[str, Any],
    state: dict[str, nn.Parameter],
    inputs: torch.Tensor,
    positions: torch.Tensor,
    wanted: torch.Tensor,
) -> Iterator[int]:
    """Yield each number of stages that give other logits."""
    for count in (1, 2, 3):
        x = inputs
        for stage in cut(config, count, state):
            x = stage(x, positions)
        if not is_close(x, wanted):
            yield count


def _of_small_reach(tiny: dict[str, Any], sequence_length: int) -> dict[str, Any]:
    """Return the tiny config with a reach that its documents exceed, if those of a job may exceed theirs."""
    tiny = copy.deepcopy(tiny)
    tables: list[Any] = [tiny]
    for table in tables:
        if (table.get(ORIGINAL_REACH) or sequence_length) < sequence_length:
            table[ORIGINAL_REACH] = TINY_REACH
        tables += [value for value in table.values() if isinstance(value, dict)]
    return tiny
