"""The tiny model: the same architecture at a size that costs nothing, for what it does shows at any size."""

import copy
from typing import Any

from dtfm_protocol.model.model_config import build_config, field_name

TINY_LAYERS = 4
"""Decoder layers of the tiny model: enough for three stages, and one of them with two layers."""
TINY_VOCAB = 64
"""Tokens of the tiny model's vocabulary."""
HEADS, HEAD_DIM, WIDTH = 4, 16, 96
WINDOW = 4
"""Tokens of a sliding window: fewer than any sequence that is tried, so that the window shows."""


def tiny_config(config: dict[str, Any]) -> dict[str, Any]:
    """Shrink a resolved config: few narrow layers, a small vocabulary, the features kept.

    Kept are every kind of layer that `layer_types` names, grouped heads, heads that are wider together than the hidden
    size, tied embeddings, partial rotary dimensions, sliding windows and experts. Fields that this does not know stay.
    """
    values = with_layers(config, _one_of_each_kind(config))
    whole = build_config(config)

    def put(name: str, value: Any) -> None:
        key = field_name(whole, name)
        if values.get(key) is not None:
            values[key] = value

    heads, kv_heads = getattr(whole, "num_attention_heads", 1), getattr(whole, "num_key_value_heads", None)
    wide = (getattr(whole, "head_dim", None) or 0) * heads not in (0, whole.hidden_size)
    hidden = (HEADS - 1) * HEAD_DIM if wide else HEADS * HEAD_DIM
    put("num_attention_heads", HEADS)
    put("num_key_value_heads", HEADS if kv_heads == heads else 1 if kv_heads == 1 else HEADS // 2)
    put("head_dim", HEAD_DIM)
    if values.get("word_embed_proj_dim") == whole.hidden_size:
        put("word_embed_proj_dim", hidden)
    put("hidden_size", hidden)
    put("rotary_dim", HEAD_DIM)
    for name in ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "moe_intermediate_size"):
        put(name, WIDTH)
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        put(name, WIDTH)
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        put(name, 4)
    for name in ("num_experts_per_tok", "moe_topk"):
        put(name, 2)
    for name in ("n_group", "topk_group", "first_k_dense_replace"):
        put(name, min(1, values.get(name) or 0))
    for name in ("sliding_window", "attention_chunk_size"):
        put(name, WINDOW)
    put("vocab_size", TINY_VOCAB)
    for key in [key for key in values if key.endswith("_token_id")]:
        ids = values[key]
        values[key] = [i % TINY_VOCAB for i in ids] if isinstance(ids, list) else ids and ids % TINY_VOCAB
    _shorten_rotary_factors(values)
    return values


def with_layers(config: dict[str, Any], layers: list[int]) -> dict[str, Any]:
    """Return the config of a model whose layer i is of the kind of layer `layers[i]` of `config`."""
    values = copy.deepcopy(config)
    whole = build_config(config)
    for key in per_layer_fields(config):
        values[key] = [values[key][index] for index in layers]
    values[field_name(whole, "num_hidden_layers")] = len(layers)
    return values


def per_layer_fields(config: dict[str, Any]) -> list[str]:
    """List the fields that hold one entry for each decoder layer, such as `layer_types`."""
    count = build_config(config).num_hidden_layers
    return [
        key
        for key, value in config.items()
        if isinstance(value, list) and len(value) == count and (key.endswith("_types") or key == "no_rope_layers")
    ]


def _one_of_each_kind(config: dict[str, Any]) -> list[int]:
    """Choose layers to keep, ascending: the first of each kind, then the next ones, again from 0 if too few."""
    count = build_config(config).num_hidden_layers
    fields = per_layer_fields(config)
    kinds: dict[tuple[Any, ...], int] = {}
    for index in range(count):
        kinds.setdefault(tuple(config[key][index] for key in fields), index)
    keep = list(kinds.values())
    keep += [index for index in range(count) if index not in keep][: max(0, TINY_LAYERS - len(keep))]
    keep += [index % count for index in range(max(0, TINY_LAYERS - len(keep)))]
    return sorted(keep)


def _shorten_rotary_factors(values: dict[str, Any]) -> None:
    """Shorten the factors of rescaled rotary frequencies ("longrope") to one for each pair of rotary dimensions."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    pairs = int(HEAD_DIM * rope.get("partial_rotary_factor", 1.0)) // 2
    for key in ("short_factor", "long_factor"):
        if isinstance(rope.get(key), list):
            rope[key] = rope[key][:pairs]
