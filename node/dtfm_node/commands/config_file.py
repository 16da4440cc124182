"""The config file of a node, `dtfm-node.toml`: the options of `join`, for those who do not want to type them again.

It is made from the options themselves, and so is never out of date. The command line wins over it, and is kept in it:
what a person has allowed holds until that person takes it back.
"""

import json
import re
import tomllib
from collections.abc import Collection, Mapping
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
NOT_KEPT = ("timeout", "trace", "verbose", "log-format")
"""Options that are of one start: the command line's are not kept in the file, where they may stand all the same."""
FILE_OF = "dtfm-node.config-file"
"""Key of a context's notes, under which the config file of each option lies that was set from one."""
HEAD = """\
# Options of `dtfm-node join` in this folder's swarm, each with its help. What the command line says is kept here and
# holds at the next start, too; what it says then takes its place. To take an option back, put a # before its line; to
# set one, take the # off, and give it a value. The file is read when the node starts. It was made at the first join:
# `dtfm-node join --help` lists the options of a later version.
"""


class ConfiguredCommand(TyperCommand):
    """A command whose options may also stand in a config file."""

    def set_from(self, path: Path, context: Any, *, must_exist: bool) -> None:
        """Set each option that the command line of `context` has left at its default to what the file at `path` says.

        Raises:
            UserError: the file cannot be read, or has keys or values that are no option's; all of them are told.
        """
        options, faults = self._options(context), list[str]()
        for key, value in read(path, must_exist=must_exist).items():
            try:
                self._set(key, value, options, context, path)
            except UserError as error:
                faults.append(str(error))
        if faults:
            raise UserError(f"{path}: {'; '.join(faults)}")

    def _set(self, key: str, value: Any, options: Mapping[str, Any], context: Any, path: Path) -> None:
        option = options.get(key)
        if option is None:
            near = get_close_matches(key, options, n=1)
            meant = f"did you mean {near[0]}?" if near else "`dtfm-node join --help` lists them"
            raise UserError(f"there is no option {key}; {meant}")
        if isinstance(value, dict | list) or isinstance(value, bool) != bool(option.is_flag):
            asked = "true or false" if option.is_flag else "one number or text"
            raise UserError(f"{key} is to be {asked}")
        if _is_typed(option, context):
            return
        try:
            given = value if option.is_flag else str(value)
            context.params[option.name] = option.process_value(context, given)
        except typer.BadParameter as error:
            raise UserError(f"{key}: {error.message}") from None
        context.meta.setdefault(FILE_OF, {})[key] = path

    def called(self, context: Any, key: str) -> str:
        """Return how an error is to call the option `key` of `context`: by where it was set."""
        path = context.meta.get(FILE_OF, {}).get(key)
        return f"--{key}" if path is None else f"{path}: {key}"

    def to_keep(self, context: Any, kept: Path) -> dict[str, Any]:
        """Return the options that are to stand in the config file at `kept` from now on, by name: those that the
        command line of `context`, or another file, has set."""
        found: dict[str, Any] = {}
        for key, option in self._options(context).items():
            path = context.meta.get(FILE_OF, {}).get(key)
            if key not in NOT_KEPT and (_is_typed(option, context) or path not in (None, kept)):
                value = context.params[option.name]
                found[key] = getattr(value, "value", value)
        return found

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


def keep(template: str, values: Mapping[str, Any], folder: Path) -> None:
    """Write the config file of a state folder: `template` where there is none yet, with these options set.

    Raises:
        UserError: it cannot be written, or cannot be changed.
    """
    path = folder / CONFIG
    known = path.exists()
    try:
        before = path.read_text(encoding="utf-8") if known else template
        after = with_options(before, values)
    except (OSError, UnicodeDecodeError, ValueError):
        lines = "; ".join(_line(key, value) for key, value in values.items())
        raise UserError(
            f"cannot keep what you have allowed in {path}, as it stands: write into it by hand: {lines}"
        ) from None
    if not known or after != before:
        write_atomically(path, after, private=True)


def with_options(text: str, values: Mapping[str, Any]) -> str:
    """Return the config file `text` with these options set: each in its line, or where its line is a comment.

    Raises:
        ValueError: the text is such that this cannot be done line by line.
    """
    expected = tomllib.loads(text) | {key: tomllib.loads(_line(key, value))[key] for key, value in values.items()}
    for key, value in values.items():
        line = _line(key, value)
        for pattern in (rf"^{re.escape(key)}[ \t]*=.*$", rf"^#[ \t]*{re.escape(key)}[ \t]*=.*$"):
            text, count = re.subn(pattern, line.replace("\\", r"\\"), text, count=1, flags=re.MULTILINE)
            if count:
                break
        else:
            text = f"{text.rstrip()}\n{line}\n"
    if tomllib.loads(text) != expected:
        raise ValueError("an option's line is not what it seems")
    return text


def _is_typed(option: Any, context: Any) -> bool:
    return str(getattr(context.get_parameter_source(option.name), "name", "")) == "COMMANDLINE"


def _line(key: str, value: Any) -> str:
    return f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)
