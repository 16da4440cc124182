"""The reader of all that a corpus says, out of a folder of its files."""

from dtfm_protocol.data.sample_shards import MarkReader, TargetCounts
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader
from dtfm_protocol.job.resolved_job import Corpus


class CorpusReader:
    """The readers of a corpus's tokens, and of what is said of them where it has samples."""

    def __init__(self, corpus: Corpus, shards: ShardFolder) -> None:
        """Open nothing yet."""
        has_samples = corpus.samples is not None
        self.held_out = corpus.held_out
        """The sets that are evaluated; none: the end of the text is."""
        self.tokens = TokenReader(corpus, shards)
        self.marks = MarkReader(corpus, shards) if has_samples else None
        """Reader of what the job says of its tokens; None: nothing."""
        self.counts = TargetCounts(corpus, shards) if has_samples else None
        """Numbers of targets of the corpus's windows; None: all tokens are targets."""

    def close(self) -> None:
        """Close all shards: what is read next is opened anew."""
        for reader in (self.tokens, self.marks):
            if reader is not None:
                reader.close()
