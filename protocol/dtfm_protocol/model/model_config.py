"""The job's model as one whole `transformers` config: every field spelled out, checked, ready for JSON."""

import copy
import difflib
import json
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.activations import ACT2FN
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model

TOKEN_IDS = {"bos_token_id", "eos_token_id", "pad_token_id"}
"""Fields that hold ids of special tokens of the architecture's own tokenizer."""
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "n_inner",
    "ffn_dim",
    "moe_intermediate_size",
)
"""Common names of dimensions, for which 0 is never right."""
LEGACY_ROPE = ("rope_theta", "rope_scaling", "partial_rotary_factor")
"""Fields that config classes with `rope_parameters` still take and fold into it."""
BOOKKEEPING = ("auto_map", "architectures", "transformers_version", "_name_or_path", "torch_dtype", "dtype")
"""Keys of a saved config.json that say how it was saved, not what the model is."""
FORCED = {"use_cache": False, "output_attentions": False, "output_hidden_states": False, "return_dict": True}
"""Values of fields that training needs, whatever a config says: these change what a forward returns, never what it
computes."""
LOADERS = ("attn_implementation", "experts_implementation", "auto_map", "quantization_config", "use_kernels")
"""Keys that can make `transformers` fetch kernels or run a repository's code."""
MOST_LAYERS = 1024
"""Decoder layers that a model may have: deeper than any that was trained; more would take long merely to lay out."""
CONFIG_ERRORS = (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
"""Errors that config classes raise on values that they cannot take."""


def resolve_config(model: Model, vocab_size: int, sequence_length: int) -> dict[str, Any]:
    """Spell out the whole `transformers` config of `model` as a JSON-able dict, `model_type` included.

    The architecture's defaults hold where the job is silent, except that dropout is zero, token ids are None (the
    defaults belong to the architecture's own tokenizer, and a padding token would never be trained), and the positions
    reach at least as far as the sequence: learned positions exactly as far. A folder brings all of its config.json but
    dropout.

    Args:
        model: `[model]` of the job; a `path` must be absolute or relative to the working directory.
        vocab_size: tokens of the job's tokenizer. A `path` whose config.json has more keeps its own.
        sequence_length: tokens that one sequence feeds to the model.

    Raises:
        UserError: the config is wrong; one line names the key.
    """
    if (folder := model.folder) is not None:
        given, where = _read_folder(folder), f"{folder / 'config.json'}: "
        given |= dict.fromkeys(_noisy(given), 0.0)
        architecture = given.pop("model_type", None)
    else:
        given, where = model.fields, "model."
        architecture = model.architecture
    try:
        return _resolve(architecture, given, vocab_size, sequence_length, saved=folder is not None)
    except _FieldError as error:
        raise UserError(f"{where}{error}") from None


def dropout_in_words(model: Model) -> str:
    """Return what is said of the dropout that a folder's config.json asks for, which training leaves out; "": none.

    Raises:
        UserError: the config cannot be read.
    """
    folder = model.folder
    if folder is None or not (noisy := _noisy(_read_folder(folder))):
        return ""
    return f"{folder / 'config.json'} asks for dropout ({', '.join(noisy)}): the model is trained without it"


def build_config(config: dict[str, Any]) -> PretrainedConfig:
    """Build the config object of a resolved config, which may have come from the network.

    Raises:
        UserError: `transformers` does not take it, or a key could make it load code.
    """
    values = copy.deepcopy(config)
    architecture = values.pop("model_type", None)
    try:
        cls, _ = _architecture(architecture, "model_type")
    except _FieldError as error:
        raise UserError(f"model.{error}") from None
    if unsafe := [key for key in values if _loads_code(key)]:
        raise UserError(f"model.{unsafe[0]}: this key may load code; it is not accepted")
    key = field_name(cls, "num_hidden_layers")
    layers = values.get(key)
    if not isinstance(layers, int) or not 0 < layers <= MOST_LAYERS:
        raise UserError(f"model.{key}: {layers!r} is not a number of layers from 1 to {MOST_LAYERS}")
    try:
        return cls(**values)
    except CONFIG_ERRORS as error:
        raise UserError(f"model: transformers refuses the config: {one_line(error)}") from None


def field_name(config: type[PretrainedConfig] | PretrainedConfig, name: str) -> str:
    """Return the name under which an architecture keeps a common field, e.g. `n_embd` for `hidden_size` in gpt2."""
    return str(config.attribute_map.get(name, name))


def one_line(error: BaseException) -> str:
    """Return an exception's message on one line, at most 300 characters, never empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


class _FieldError(Exception):
    """An error of a field, `field: reason`, before it is known where the field was written."""


def _read_folder(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"model.path: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"model.path: {path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"model.path: {path} is not a JSON object")
    return values


def _resolve(
    architecture: Any, given: dict[str, Any], vocab_size: int, sequence_length: int, *, saved: bool
) -> dict[str, Any]:
    cls, default = _architecture(architecture, "model_type" if saved else "architecture")
    given = _named(cls, default, given, vocab_size, saved=saved)
    _check_values(cls, given)
    values: dict[str, Any] = {
        key: 0.0 for key, value in vars(default).items() if _is_noise(key) and _is_number(value) and value
    }
    values |= {key: None for key in TOKEN_IDS if hasattr(default, key)}
    values |= _positions(cls, default, given, sequence_length)
    # on a class that has no such field the keyword would become an attribute of that name, read by nobody
    values |= {field_name(cls, "vocab_size"): vocab_size} | given | FORCED | {"dtype": "float32"}
    _check_heads(cls, default, given)
    try:
        config = cls(**copy.deepcopy(values))
    except CONFIG_ERRORS as error:
        raise _FieldError(f"{_culprit(error, given)}{one_line(error)}") from None
    if getattr(config, "is_heterogeneous", False):
        raise _FieldError(f"per_layer_config: layers of {cls.model_type} with fields of their own are not supported")
    _check_groups(cls, config, given)
    for key in TOKEN_IDS - given.keys():  # some classes fill them in
        if hasattr(config, key):
            setattr(config, key, None)
    _check_tokens(config)
    return _as_json(config)


def _architecture(name: Any, key: str) -> tuple[type[PretrainedConfig], PretrainedConfig]:
    """Return the config class of a decoder-only causal language model, and its defaults."""
    if not isinstance(name, str) or name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or name not in CONFIG_MAPPING:
        near = difflib.get_close_matches(str(name), MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else 'try "llama", "qwen3" or "gpt2"'
        raise _FieldError(f"{key}: transformers knows no causal language model {name!r}; {hint}")
    cls = CONFIG_MAPPING[name]
    if cls.sub_configs:
        raise _FieldError(f"{key}: {name!r} is several models in one, not a decoder-only language model")
    try:
        default = cls()
    except CONFIG_ERRORS as error:
        raise _FieldError(f"{key}: {name!r} has no default config: {one_line(error)}") from None
    # encoders that can play decoder look both ways unless told; gpt_neox has the flag but no use for it
    encoder = not getattr(default, "is_decoder", True) and not hasattr(default, "rope_parameters")
    if default.is_encoder_decoder or encoder:
        raise _FieldError(f"{key}: {name!r} is not a decoder-only language model")
    if not all(hasattr(default, field) for field in ("hidden_size", "num_hidden_layers", "vocab_size")):
        raise _FieldError(f"{key}: {name!r} is not a stack of decoder layers of one hidden size")
    return cls, default


def _named(
    cls: type[PretrainedConfig], default: PretrainedConfig, given: dict[str, Any], vocab_size: int, *, saved: bool
) -> dict[str, Any]:
    """Return the given fields under the architecture's own names; refuse unknown ones, or keep a saved config's."""
    known = set(vars(default)) - set(vars(PretrainedConfig())) | set(cls.attribute_map) | {"tie_word_embeddings"}
    if "rope_parameters" in known:
        known |= set(LEGACY_ROPE)
    fields: dict[str, Any] = {}
    for key, value in given.items():
        name = field_name(cls, key)
        if key == "quantization_config":
            raise _FieldError(f"{key}: quantized weights cannot be trained; give a folder with full-precision weights")
        if saved and (key in BOOKKEEPING or key in FORCED or _loads_code(key)):
            continue
        if key in FORCED and value == FORCED[key]:
            continue
        if key in FORCED:
            raise _FieldError(f"{key}: training needs {str(FORCED[key]).lower()}; remove it")
        if not saved and (key not in known or _loads_code(key)):
            near = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise _FieldError(f"{key}: the config of {cls.model_type} has no such field{hint}")
        if name in fields:
            raise _FieldError(f"{key}: the same field as {name}, given twice; remove one")
        fields[name] = value
    own = fields.get(field_name(cls, "vocab_size"))
    if saved and isinstance(own, int) and own < vocab_size:
        raise _FieldError(f"vocab_size: {own} is less than the tokenizer's {vocab_size}; use the folder's tokenizer")
    return fields


def _check_values(cls: type[PretrainedConfig], given: dict[str, Any]) -> None:
    """Refuse negative counts, an empty dimension, dropout, and an activation function that does not exist."""
    positive = {field_name(cls, name) for name in SIZES}
    for key, value in given.items():
        if key in ("hidden_act", "hidden_activation", "activation_function") and value not in ACT2FN:
            raise _FieldError(f"{key}: transformers knows no activation function {value!r}")
        if not _is_number(value):
            continue
        if key in positive and value <= 0:
            raise _FieldError(f"{key}: {value} must be more than 0")
        if value < 0 and (
            key.startswith(("num_", "n_")) or key.endswith(("_size", "_dim", "_range", "_eps", "_theta"))
        ):
            raise _FieldError(f"{key}: {value} must not be negative")
        if value and _is_noise(key):
            raise _FieldError(f"{key}: {value} must be 0: random dropout would make every peer's gradient another one")


def _check_heads(cls: type[PretrainedConfig], default: PretrainedConfig, given: dict[str, Any]) -> None:
    """Refuse heads that do not share the hidden size evenly, unless the job gives them a width of their own."""
    key, width = field_name(cls, "num_attention_heads"), field_name(cls, "hidden_size")
    heads, hidden = (given.get(name, getattr(default, name, None)) for name in (key, width))
    free = given.get("head_dim") is not None
    if isinstance(heads, int) and isinstance(hidden, int) and not free and hidden % heads:
        raise _FieldError(f"{key}: {heads} heads do not divide {width} {hidden}")


def _check_groups(cls: type[PretrainedConfig], config: PretrainedConfig, given: dict[str, Any]) -> None:
    """Refuse key-value heads that do not serve equal groups of heads."""
    heads, kv_heads = getattr(config, "num_attention_heads", None), getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        source = "" if "num_key_value_heads" in given else f" (the default of {cls.model_type}; set it)"
        key = field_name(cls, "num_attention_heads")
        raise _FieldError(f"num_key_value_heads: {kv_heads}{source} does not divide {key} {heads}")


def _check_tokens(config: PretrainedConfig) -> None:
    for key in sorted(TOKEN_IDS):
        ids = getattr(config, key, None)
        for token in ids if isinstance(ids, list | tuple) else [ids]:
            if token is not None and not (isinstance(token, int) and 0 <= token < config.vocab_size):
                raise _FieldError(f"{key}: {token!r} is not a token: the vocabulary has 0 to {config.vocab_size - 1}")


def _positions(
    cls: type[PretrainedConfig], default: PretrainedConfig, given: dict[str, Any], sequence_length: int
) -> dict[str, Any]:
    """Return how far positions reach where the job is silent; learned ones reach no further than the job needs."""
    key = field_name(cls, "max_position_embeddings")
    if key not in vars(default):
        return {}
    if _is_number(given.get(key)):
        if given[key] < sequence_length:
            raise _FieldError(f"{key}: {given[key]} is less than training.sequence_length ({sequence_length})")
        return {}
    if hasattr(default, "rope_parameters"):
        return {key: max(getattr(default, key) or 0, sequence_length)}
    return {key: sequence_length}


def _as_json(config: PretrainedConfig) -> dict[str, Any]:
    plain = PretrainedConfig().to_dict()
    values = {
        key: value
        for key, value in config.to_dict().items()
        if key not in ("transformers_version", "architectures")
        and not key.startswith("_")
        and (key not in plain or plain[key] != value)
    }
    try:
        text = json.dumps(values | {"model_type": config.model_type}, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise _FieldError(f"config: cannot be written as JSON: {one_line(error)}") from None
    resolved: dict[str, Any] = json.loads(text)
    return resolved


def _culprit(error: BaseException, given: dict[str, Any]) -> str:
    """Return `key: ` of the given field that an error of `transformers` speaks of, where it names one."""
    text = str(error)
    named = [key for key in given if f"'{key}'" in text or f"`{key}`" in text]
    return f"{named[0]}: " if named else "config: "


def _loads_code(key: str) -> bool:
    return key in LOADERS or key.startswith("_")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _noisy(given: dict[str, Any]) -> list[str]:
    """List the fields of a saved config that add noise in training."""
    return [key for key, value in given.items() if _is_noise(key) and _is_number(value) and value]


def _is_noise(key: str) -> bool:
    """Whether a field is a probability or size of noise that a forward in training mode adds."""
    return any(part in key for part in ("dropout", "pdrop", "layerdrop", "drop_rate", "drop_path", "jitter"))
