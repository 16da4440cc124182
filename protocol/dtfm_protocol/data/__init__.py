"""The data of a job, from the owner's text to the micro-batches of a step.

- `arrow_tables`: tables of Arrow: Parquet files, and folders that `datasets` has written, read a few rows at a time
- `batches`: the tokens that a step reads: a pure function of the seed and the step, so that no peer has to be told
- `chapters`: chapters of a corpus: lists of its shards, each in a file named by its hash, so that a job names few
  (pure)
- `chat_template`: the chat template of a job: from the messages of a conversation to its text, and to what of it is
  learned
- `contents`: what a row says: the text of its document, and which of it is learned
- `corpus_writer`: the writer of a corpus: tokens of any number become shards, and many shards chapters, as they come
- `corpus_reader`: the reader of all that a corpus says, out of a folder of its files
- `documents`: the documents of a job: read from its sources anew each time they are gone through, a few at a time
- `encoding_pool`: a pool of workers that turn pieces of text into tokens at the same time; all comes in the pieces'
  order
- `encoding_worker`: a worker that turns pieces of text into tokens: a process of its own, and the other end of its
  pipes
- `held_out_sets`: the sets on which a job is evaluated, as tokens: each in whole windows, apart from what is trained on
- `hub_dataset`: data sets by name: streamed by `datasets`, from the hub or from a folder that it knows how to load
- `hub_sizes`: the sizes of data sets by name, as the hub, or the folder of one, tells them
- `json_lines`: JSON lines: files with an object of JSON on each line, read a line at a time
- `laid_out_corpus`: the corpus of a job whose documents stand apart from each other: from pieces of text to shards of
  tokens and of marks, from where an earlier run was broken off
- `layout_state`: the state of a laying out between two pieces of the text, as bytes, so that who is broken off can go
  on there
- `marks`: marks of tokens: which are learned, and where what stands apart begins; a byte a token (pure)
- `not_text`: the refusal of files that hold documents in another form than plain text, by their names and first bytes
  (pure)
- `packing`: the layout of samples in bins of a sequence's length: several side by side, or each in a bin of its own
  (pure)
- `permutation`: a keyed shuffle of `range(size)` that is evaluated one index at a time and takes no memory
- `piece_encoder`: the encoder of pieces of text: reads the rows of one, and gives the tokens of its documents, a few at
  a time
- `prepare`: the preparation of a job: its tokenizer, token shards, the model's config and pretrained weights
- `preparing_journal`: the journal of a corpus that is being made: what is on disk of it, so that who is broken off can
  go on there
- `repeats`: how often each document of a source is in the corpus, by the source's weight (pure)
- `row_formats`: the reader of each form of files
- `rows`: rows of a source's files: what each holds, or what is wrong with it
- `sample_encoding`: the way from what documents say to samples: tokens, and which of them are learned
- `sample_shards`: samples on disk: readers of marks and of the windows' numbers of targets, in files as token shards
  are
- `source_files`: the files of a job's sources, in an order that does not depend on the file system
- `text`: text files: each a document, in UTF-8
- `text_check`: the check of a job's text before it is tokenized: by its files' sizes, and by a sample of them
- `text_pieces`: pieces of a job's text: parts of its sources' files, in the order of the corpus, that are tokenized by
  themselves
- `text_sample`: a sample of a job's documents, which stands for all of them where there are many
- `set_sizes`: the sizes of the sets on which a job is evaluated, before anything is prepared
- `text_size`: the size of the owner's text before it is tokenized: bytes, and tokens, counted where that is cheap
- `text_stream`: the stream of a job's text into its corpus: piece after piece, from where an earlier run was broken off
- `text_tally`: the tally of a text that becomes tokens: which documents count, which rows are lost, and where each is
  (pure)
- `token_shards`: tokens on disk: shards of little-endian integers in files named by their SHA-256, and their reader
- `tokenization`: the way from a job's documents to its token shards, with words on how far it is
- `tokenizer`: the job's tokenizer, from text to token ids and back: bytes, a byte-level BPE trained on the text, or a
  ready one
"""
