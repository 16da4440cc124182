"""Text that the model of the newest checkpoint writes after a prompt."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtfm_coordinator.tools.export import load_checkpoint
from dtfm_protocol.errors import UserError

if TYPE_CHECKING:
    import torch


def generate(state_dir: Path, prompt: str, max_new_tokens: int = 200, temperature: float = 0.8, seed: int = 0) -> str:
    """Return what the newest checkpoint writes after `prompt`; the prompt itself is not repeated.

    Args:
        state_dir: state dir of a coordinator, which may be running.
        prompt: text that is continued; if it is empty, a new document begins.
        max_new_tokens: number of tokens that are written at most; the end of text stops it earlier.
        temperature: divisor of the logits; 0 always takes the likeliest token.
        seed: seed of the draws; the same seed writes the same text.

    Raises:
        UserError: there is no checkpoint or no tokenizer, or a number is out of range.
    """
    if max_new_tokens < 1:
        raise UserError(f"cannot generate {max_new_tokens} tokens: give at least 1")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature {temperature} is out of range: give 0 or more")
    if not 0 <= seed < 1 << 63:
        raise UserError(f"seed {seed} is out of range: give 0 or more")
    model, tokenizer, _ = load_checkpoint(state_dir)
    given = tokenizer(prompt, add_special_tokens=False)["input_ids"] or [tokenizer.eos_token_id]
    written = sample(model, given, max_new_tokens, temperature, seed, tokenizer.eos_token_id, len(tokenizer))
    # Decoded with the prompt before them, because some tokenizers drop a space at the start.
    start = len(tokenizer.decode(given))
    text: str = tokenizer.decode(given + written)[start:]
    return text


def sample(
    model: Any, given: list[int], count: int, temperature: float, seed: int, end: int | None, vocab_size: int
) -> list[int]:
    """Return up to `count` tokens that follow `given`, without `end`, which stops them.

    Only the last `max_position_embeddings` tokens are seen. Logits from `vocab_size` on, which the tokenizer has no
    token for, are left out.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    limit = getattr(model.config, "max_position_embeddings", None) or len(given) + count
    tokens = list(given)
    cache = None
    with torch.inference_mode():
        while len(tokens) < len(given) + count:
            if cache is None or len(tokens) > limit:
                # Past the limit each token moves to another position, so that nothing kept of it is of use.
                cache, seen = None, tokens[-limit:]
            else:
                seen = tokens[-1:]
            output = model(input_ids=torch.tensor([seen]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            token = _draw(output.logits[0, -1, :vocab_size].float(), temperature, generator)
            if token == end:
                break
            tokens.append(token)
    return tokens[len(given) :]


def _draw(logits: "torch.Tensor", temperature: float, generator: "torch.Generator") -> int:
    import torch

    if temperature == 0:
        return int(logits.argmax())
    # The largest becomes 0 first, so that no temperature, however small, makes it infinite.
    scaled = (logits - logits.max()).double() / temperature
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
