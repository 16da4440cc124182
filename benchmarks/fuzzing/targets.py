"""All targets: the registry of parsers that bytes from others reach."""

from collections.abc import Iterator

from benchmarks.fuzzing.ahead import ahead_targets
from benchmarks.fuzzing.connections import connection_targets
from benchmarks.fuzzing.files import file_targets
from benchmarks.fuzzing.link_figures import figure_targets
from benchmarks.fuzzing.members_desk import desk_targets
from benchmarks.fuzzing.messages import message_targets
from benchmarks.fuzzing.papers import paper_targets
from benchmarks.fuzzing.ports import port_targets
from benchmarks.fuzzing.swarm_sides import Sides
from benchmarks.fuzzing.training import training_targets
from benchmarks.fuzzing.trial import Target


def all_targets(sides: Sides) -> Iterator[Target]:
    """Yield every target; `sides` is to be closed after the last trial."""
    yield from paper_targets(sides)
    yield from desk_targets(sides)
    yield from message_targets(sides)
    yield from connection_targets(sides)
    yield from training_targets(sides)
    yield from figure_targets(sides)
    yield from file_targets(sides)
    yield from ahead_targets(sides)
    yield from port_targets(sides)
