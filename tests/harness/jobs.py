"""Little jobs on a text that every Python brings along."""

from dataclasses import dataclass

_JOB = """
name = "{size.name}"
[model]
architecture = "llama"
hidden_size = {size.hidden}
intermediate_size = {size.intermediate}
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = {tied}
[data]
text = "cpython"
[training]
steps = {steps}
global_batch = 8
micro_batch = 1
sequence_length = {size.sequence}
learning_rate = 1e-3
warmup_steps = 3
seed = 1
[evaluation]
every = 10
sequences = {size.evaluated}
[checkpoint]
every = {checkpoint}
shadow = {shadow}
"""


@dataclass(frozen=True)
class Size:
    """A model of four layers and the sequences that it is trained on."""

    name: str
    hidden: int
    intermediate: int
    sequence: int
    evaluated: int
    """Sequences of an evaluation."""
    slow: float
    """GFLOP/s of devices with which a step of two stages takes a fifth of a second."""
    steps: int = 20
    checkpoint: int = 10
    """Steps between two checkpoints."""
    shadow: int = 10
    """Steps between two copies of a lone stage on a spare."""

    def job(
        self, steps: int | None = None, *, checkpoint: int | None = None, shadow: int | None = None, tied: bool = True
    ) -> str:
        """The job file's text; what is not given is the size's own."""
        return _JOB.format(
            size=self,
            steps=self.steps if steps is None else steps,
            checkpoint=self.checkpoint if checkpoint is None else checkpoint,
            shadow=self.shadow if shadow is None else shadow,
            tied=str(tied).lower(),
        )


TINY = Size("tiny", hidden=32, intermediate=64, sequence=32, evaluated=5, slow=0.15)
"""For tests: steps of a few hundredths of a second."""
SMALL = Size("chaos", hidden=64, intermediate=172, sequence=64, evaluated=4, slow=1.25, checkpoint=50, shadow=5)
"""For the chaos tables, and for the tests that are their short form."""
