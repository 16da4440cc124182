"""The job's tokenizer, from text to token ids and back: bytes, a byte-level BPE trained on the text, or a ready one."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data

END_OF_TEXT = "<|endoftext|>"
"""Text of the token that stands between two documents."""
SMALLEST_BPE = 257
"""Size of a BPE that any text yields: the bytes, and the end of text."""
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model*",
    "vocab.*",
    "*.vocab",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "tekken.json",
)
"""Files of which a tokenizer's folder has at least one, but for tokenizers that need none."""
CHARACTERS_AT_ONCE = 1 << 22
"""Characters that are handed to the tokenizer at a time: enough for all cores, little enough for memory."""


class TooLargeBPE(UserError):
    """The refusal of a "bpe:SIZE" with more tokens than the text yields."""

    def __init__(self, name: str, yields: int) -> None:
        """Say so; `yields` is the most tokens that the text yields."""
        super().__init__(f'data.tokenizer: "{name}" is more than the text yields: give at most "bpe:{yields}"')
        self.yields = yields


def make_tokenizer(data: Data, documents: Iterable[str], trained: str = "") -> Any:
    """Make the job's tokenizer: one of `transformers` whose `eos_token` ends a document; `len()` is its vocabulary.

    "bytes" has the 256 bytes of UTF-8 as ids 0 to 255, and the end of text as 256. "bpe:SIZE" is trained on
    `documents`, the same on every machine; SIZE counts the 256 bytes and the end of text too.

    Args:
        trained: a BPE that was trained on them before, as `as_written` has it; "": there is none.

    Raises:
        UserError: the size is none, or more than the text yields; the folder holds no tokenizer, or one without an
            end-of-text token.
    """
    tokenizer = _made(data, documents, trained)
    if data.chat_template is not None:  # whoever takes the model home is to talk to it in the same way
        tokenizer.chat_template = Path(data.chat_template).read_text(encoding="utf-8")
    return tokenizer


def _made(data: Data, documents: Iterable[str], trained: str) -> Any:
    if data.tokenizer == "bytes":
        return _bytes()
    if data.tokenizer.startswith("bpe:"):
        return _bpe(data.tokenizer, documents, trained)
    tokenizer = load(Path(data.tokenizer))
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"data.tokenizer: {data.tokenizer} has no eos_token to put between documents: "
            "set one in its tokenizer_config.json"
        )
    check_ids(np.array([tokenizer.eos_token_id]), len(tokenizer))
    return tokenizer


def vocabulary_size(data: Data) -> int:
    """Count the tokens of the job's tokenizer without reading its text: a BPE is taken to reach its size.

    Raises:
        UserError: the size is none, or the folder holds no tokenizer.
    """
    if data.tokenizer.startswith("bpe:"):
        return _size(data.tokenizer)
    return len(make_tokenizer(data, ()))


def bpe_size(name: str) -> int | None:
    """Return SIZE of a tokenizer "bpe:SIZE"; None for any other.

    Raises:
        UserError: the size is none.
    """
    return _size(name) if name.startswith("bpe:") else None


def check_ids(tokens: npt.NDArray[np.integer[Any]], vocab_size: int) -> None:
    """Check that a tokenizer has the tokens that it gives.

    Args:
        tokens: some that it gave, [tokens].
        vocab_size: number of those that it has.

    Raises:
        UserError: it has not.
    """
    if len(tokens) and (largest := int(tokens.max())) >= vocab_size:
        raise UserError(f"data.tokenizer: it gives token {largest}, but has {vocab_size} tokens in all: mend it")


def save(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer to a folder that `AutoTokenizer` loads.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        tokenizer.save_pretrained(str(folder))
    except OSError as error:
        raise UserError(f"cannot write the tokenizer to {folder}: {error}") from None


def load(folder: Path) -> Any:
    """Load the tokenizer in `folder`; never a download, never code from the folder.

    Raises:
        UserError: there is no folder, none that `AutoTokenizer` loads, or a model's that has no tokenizer.
    """
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise UserError(f'no tokenizer folder {folder}: give "bytes", "bpe:SIZE" or a folder that exists')
    is_bare = (folder / "config.json").is_file() and not any(any(folder.glob(name)) for name in VOCABULARIES)
    none = (
        f"data.tokenizer: the model's folder {folder} has no tokenizer: put the files of the one with which it was "
        'trained there, or name another in [data], as tokenizer = "bytes"'
    )
    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - a broken folder fails in as many ways as it has formats
        if is_bare:
            raise UserError(none) from None
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"cannot load a tokenizer from {folder}: {reason}") from None
    if is_bare and type(found).vocab_files_names:  # made up of nothing but the architecture's name
        raise UserError(none)
    return found


def encode(
    data: Data, tokenizer: Any, documents: Iterable[str], *, goes_on: bool = False
) -> Iterator[npt.NDArray[np.integer[Any]]]:
    """Encode the documents as token ids, in pieces: [tokens] each, with the end of text between two documents.

    The name of a special token inside a document is text like any other.

    Args:
        goes_on: whether documents came before, so that the end of text stands before the first of these, too.
    """
    end = np.array([tokenizer.eos_token_id])
    for batch in _batches(documents):
        for ids in encode_batch(data, tokenizer, batch):
            if goes_on:
                yield end
            yield ids
            goes_on = True


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode_batch(data: Data, tokenizer: Any, documents: list[str]) -> list[npt.NDArray[np.integer[Any]]]:
    """Encode documents as token ids: [tokens] each."""
    if data.tokenizer == "bytes":  # what the tokenizer says too, a thousand times slower
        return [np.frombuffer(document.encode("utf-8"), dtype=np.uint8) for document in documents]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        batches = tokenizer(documents, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [np.asarray(ids) for ids in batches]
    before = backend.encode_special_tokens
    backend.encode_special_tokens = True
    try:
        encodings = backend.encode_batch_fast(documents, add_special_tokens=False)
    finally:
        backend.encode_special_tokens = before
    return [np.asarray(encoding.ids) for encoding in encodings]


def _bytes() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(_letters())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([END_OF_TEXT])
    return _wrapped(tokenizer)


def _letters() -> list[str]:
    """Return the letter that stands for each byte in byte-level vocabularies.

    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2, and its released
    vocabulary: a printable byte stands for itself in Latin-1, and the others for the letters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def as_written(data: Data, tokenizer: Any) -> str:
    """Return a tokenizer that was trained, as text; "" for one that was not."""
    return str(tokenizer.backend_tokenizer.to_str()) if bpe_size(data.tokenizer) is not None else ""


def _bpe(name: str, documents: Iterable[str], trained: str = "") -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    size = _size(name)
    if trained:
        return _wrapped(Tokenizer.from_str(trained))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() < size:
        raise TooLargeBPE(name, tokenizer.get_vocab_size())
    return _wrapped(tokenizer)


def _size(name: str) -> int:
    """Return SIZE of "bpe:SIZE"."""
    digits = name.removeprefix("bpe:")
    size = int(digits) if digits.isascii() and digits.isdigit() else 0
    if size <= 256:
        raise UserError(
            f'data.tokenizer: "{name}" is no size: give at least "bpe:257", the 256 bytes and the end of text'
        )
    return size


def _wrapped(tokenizer: Any) -> Any:
    from tokenizers import decoders
    from transformers import PreTrainedTokenizerFast

    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )
