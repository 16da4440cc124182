"""The pretrained weights in a model's folder, looked at by their files' headers alone, before anything is loaded."""

import json
from pathlib import Path
from typing import Any

from dtfm_protocol.errors import UserError
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.whole_model import build_skeleton

INDEX = "model.safetensors.index.json"
"""File that says which tensor is in which of several safetensors files."""
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.msgpack", "*.h5")
"""Files of weights in formats that are not read: some could run code, the others hold no fp32."""


def has_weights(folder: Path) -> bool:
    """Whether a model's folder brings weights; where it does not, they are drawn from the job's seed.

    Raises:
        UserError: there are weights, but in another format than safetensors, so that they would be passed over.
    """
    if any(folder.glob("*.safetensors")):
        return True
    others = sorted(file.name for pattern in OTHER_FORMATS for file in folder.glob(pattern))
    if others:
        raise UserError(
            f"model.path: {folder} has weights in {others[0]}, which is not safetensors, and would be trained from "
            "scratch: save it as safetensors (`save_pretrained` does), or leave config.json alone there"
        )
    return False


def check_weights(folder: Path, config: dict[str, Any]) -> None:
    """Compare the tensors in the folder's safetensors files with the model of a resolved config, by name and shape.

    A parameter may lack where the folder has no such tensor in any layer: `transformers` renames those of some
    architectures as it loads them.

    Raises:
        UserError: a file is damaged or missing, a shape differs, or a layer lacks what others have.
    """
    shapes = _shapes(folder)
    parts, skeleton = anatomy(config), build_skeleton(config)
    prefix = f"{skeleton.base_model_prefix}."
    missing: dict[str, str] = {}
    found: set[str] = set()
    for name, parameter in skeleton.named_parameters():
        saved = shapes.get(name, shapes.get(name.removeprefix(prefix)))
        pattern = parts.pattern(name)
        if saved is None:
            missing.setdefault(pattern, name)
            continue
        found.add(pattern)
        if saved != tuple(parameter.shape):
            raise UserError(
                f"model.path: the weights in {folder} do not fit its config.json: {name} is {_by(saved)} there and "
                f"{_by(tuple(parameter.shape))} by the config: take both files from the same model"
            )
    if torn := sorted(missing[pattern] for pattern in missing.keys() & found):
        raise UserError(
            f"model.path: the weights in {folder} lack {torn[0]}, which its config.json asks for: "
            "take both files from the same model"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model's folder, as its index names them, where it has one.

    Raises:
        UserError: the index cannot be read, or names what is no file of the folder.
    """
    files = {file.name for file in folder.glob("*.safetensors")}
    if (folder / INDEX).exists():
        try:
            files = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"model.path: cannot read {folder / INDEX}: {error}; fetch it again") from None
    elif "model.safetensors" in files:
        files = {"model.safetensors"}
    return [folder / name for name in sorted(map(str, files))]


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in the folder, by name."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise UserError(f"model.path: cannot read the weights in {path}: {error}; fetch it again") from None
    return shapes


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"
