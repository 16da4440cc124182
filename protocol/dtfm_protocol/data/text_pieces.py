"""Pieces of a job's text: parts of its sources' files, in the order of the corpus, that are tokenized by themselves."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dtfm_protocol.data.repeats import Repeats
from dtfm_protocol.data.row_formats import FORMATS
from dtfm_protocol.data.rows import Cut
from dtfm_protocol.data.source_files import SourceFiles


class TextPiece(NamedTuple):
    """A part of a file, as it comes once in the corpus."""

    source: SourceFiles
    turn: int
    """How many times all of the source came before, from 0."""
    file: Path
    cut: Cut


def in_order(sources: Sequence[SourceFiles]) -> list[SourceFiles]:
    """Return sources in the order of the corpus: those of a weight above 1 come first, as what is held out, at its end,
    should not be trained on."""
    return sorted(sources, key=lambda one: one.source.weight <= 1)


def repeats_of(source: SourceFiles, seed: int) -> Repeats:
    """Return how often each document of a source is in the corpus."""
    return Repeats(source.source.weight, f"dtfm documents {seed} {source.key}")


def text_pieces(sources: Sequence[SourceFiles], seed: int) -> Iterator[TextPiece]:
    """Yield all pieces, in the order of the corpus; files are looked at as they come.

    Raises:
        UserError: a file is out of reach.
    """
    for source in in_order(sources):
        for turn in range(repeats_of(source, seed).rounds):
            for file in source.files:
                for cut in FORMATS[source.source.form].cut(source, file):
                    yield TextPiece(source, turn, file, cut)
