"""Words for what a node has contributed to a run. Pure."""

from dtfm_protocol.control.contribution_record import ContributionStatement
from dtfm_protocol.plan.mark import LayerRange
from dtfm_protocol.process.quantities import time_in_words

_COUNTS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def contributed(said: ContributionStatement, who: str = "Your part is") -> str:
    """Return what a statement says, as a sentence.

    Args:
        who: begins the sentence.
    """
    percent = 100 * said.share
    part = "less than 1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"
    steps = "1 step" if said.steps == 1 else f"{said.steps:,} steps"
    return (
        f"{who} {part} of all the computing: in {steps}, {time_in_words(said.seconds)}, {in_count(said.tokens)} "
        f"tokens went through {_where(said)}."
    )


def _where(said: ContributionStatement) -> str:
    """Return which layers: those of one plan or another, of which a step went through some only."""
    words = layers_in_words(said.layers, said.of_layers)
    computed = sum(end - first for first, end in said.layers)
    return words if computed <= 1 else f"the layers that the machine had then (over the run, {words})"


def in_count(count: int) -> str:
    """Return a number as people say it: "12,400", "1.25 million"."""
    for size, word in _COUNTS:
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,}"


def layers_in_words(layers: tuple[LayerRange, ...], of: int) -> str:
    """Return runs of layers as people count them: from 1, the last one included."""
    if layers == ((0, of),):
        return f"all {of} of them" if of > 1 else "the only layer"
    spans = [str(end) if end == first + 1 else f"{first + 1}-{end}" for first, end in layers]
    one = len(layers) == 1 and layers[0][1] == layers[0][0] + 1
    listed = spans[0] if len(spans) == 1 else f"{', '.join(spans[:-1])} and {spans[-1]}"
    return f"layer{'' if one else 's'} {listed} of {of}"
