"""The data of a job, from the owner's text to the micro-batches of a step.

- `batches`: the tokens that a step reads: a pure function of the seed and the step, so that no peer has to be told
- `permutation`: a keyed shuffle of `range(size)` that is evaluated one index at a time and takes no memory
- `prepare`: the preparation of a job: its tokenizer, token shards, the model's config and pretrained weights
- `text`: the owner's text as documents, in an order that does not depend on the file system
- `text_check`: the check of a job's text before it is tokenized: by its files' sizes, and by a sample of them
- `text_size`: the size of the owner's text before it is tokenized: bytes, and tokens, counted where that is cheap
- `token_shards`: tokens on disk: shards of little-endian integers in files named by their SHA-256, and their reader
- `tokenizer`: the job's tokenizer, from text to token ids and back: bytes, a byte-level BPE trained on the text, or a
  ready one
"""
