"""The config file of a node, `dtfm-node.toml`: the options of `join`, for those who do not want to type them again.

It is made from the options themselves, and so is never out of date. The command line wins over it.
"""

import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import write_atomically

CONFIG = "dtfm-node.toml"
"""Name of the config file in a state folder."""
COMMAND_LINE_ALONE = ("help", "config", "state-dir", "yes", "log-file")
"""Options that no config file has: they say where it lies, or are answers to a question."""
HEAD = """\
# Options of `dtfm-node join` in this folder's swarm, each with its help. Take the # off a line, and give it a value.
# What the command line says wins. The file is read when the node starts. It was made at the first join:
# `dtfm-node join --help` lists the options of a later version.
"""


class ConfiguredCommand(TyperCommand):
    """A command whose options may also stand in a config file."""

    def set_from(self, path: Path, context: Any, *, must_exist: bool) -> None:
        """Set each option that the command line of `context` has left at its default to what the file at `path` says.

        Raises:
            UserError: the file cannot be read, or has a key or a value that is no option's.
        """
        values, options = read(path, must_exist=must_exist), self._options(context)
        for key, value in values.items():
            option = options.get(key)
            if option is None:
                near = get_close_matches(key, options, n=1)
                meant = f"did you mean {near[0]}?" if near else "`dtfm-node join --help` lists them"
                raise UserError(f"{path}: there is no option {key}; {meant}")
            if isinstance(value, dict | list) or isinstance(value, bool) != bool(option.is_flag):
                asked = "true or false" if option.is_flag else "one number or text"
                raise UserError(f"{path}: {key} is to be {asked}")
            if str(getattr(context.get_parameter_source(option.name), "name", "")) == "COMMANDLINE":
                continue
            try:
                given = value if option.is_flag else str(value)
                context.params[option.name] = option.process_value(context, given)
            except typer.BadParameter as error:
                raise UserError(f"{path}: {key}: {error.message}") from None

    def template(self, context: Any) -> str:
        """Return a config file that sets nothing, and explains each option."""
        parts = [HEAD]
        for key, option in self._options(context).items():
            default = option.default
            shown = "..." if default is None else _toml(getattr(default, "value", default))
            parts.append(f"# {' '.join((option.help or '').split())}\n#{key} = {shown}\n")
        return "\n".join(parts)

    def given(self, context: Any, without: Collection[str]) -> dict[str, str | bool]:
        """Return the options that are set to something else than their default, by name: a value, or whether a flag is
        set; those `without` and those that no file may have are left out."""
        found: dict[str, str | bool] = {}
        for key, option in self._options(context).items():
            value = context.params[option.name]
            if key not in without and value is not None and value != option.default:
                found[key] = bool(value) if option.is_flag else str(getattr(value, "value", value))
        return found

    def _options(self, context: Any) -> dict[str, Any]:
        """Return the options that may stand in a file, by the name that they have on the command line."""
        found: dict[str, Any] = {}
        for one in self.get_params(context):
            names = [name.lstrip("-") for name in one.opts if name.startswith("--")]
            if names and names[0] not in COMMAND_LINE_ALONE:
                found[names[0]] = one
        return found


def read(path: Path, *, must_exist: bool) -> dict[str, Any]:
    """Return the keys of the file at `path`; none where there is no file, and there need be none.

    Raises:
        UserError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if must_exist:
            raise UserError(f"there is no file {path}: check what --config says") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; mend that line, or delete the file") from None


def keep_template(text: str, folder: Path) -> None:
    """Write the config file `text` into a state folder that has none yet.

    Raises:
        UserError: it cannot be written.
    """
    path = folder / CONFIG
    if not path.exists():
        write_atomically(path, text, private=True)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
