"""From the owner's text to the micro-batches of a step.

- `text`: the files and globs of the job, as documents.
- `tokenizer`: bytes, a BPE trained on the text, or a pretrained tokenizer.
- `shards`: tokens in memory-mapped files named by their SHA-256, and the folder that keeps them.
- `permutation`: a keyed shuffle of any size that takes no memory.
- `batches`: which tokens a step reads, a pure function of seed and step.
"""
