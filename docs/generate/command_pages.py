"""Pages of the two programs: every command with its arguments, options and defaults, as the programs' own parsers
have them."""

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

from docs.generate.markdown import code, page, paragraph, table


def node_page() -> str:
    """Return the page of `dtfm-node`."""
    from dtfm_node.main import app

    return _program("dtfm-node", app)


def coordinator_page() -> str:
    """Return the page of `dtfm-coordinator`."""
    from dtfm_coordinator.main import app

    return _program("dtfm-coordinator", app)


def parser(app: typer.Typer) -> Any:
    """Return the parser of a program's command line."""
    return typer.main.get_command(app)


def commands(found: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each command of a parser with the words that call it, those inside groups too."""
    inner = getattr(found, "commands", None)
    if inner is None:
        yield name, found
        return
    for word, command in inner.items():
        yield from commands(command, f"{name} {word}")


def _program(name: str, app: typer.Typer) -> str:
    root = parser(app)
    found = list(commands(root, name))
    index = table(
        ["command", "what it does"],
        ([f"[`{words}`](#{words.replace(' ', '-')})", _help(command)] for words, command in found),
    )
    exits = (
        "`--help` explains any command, `--version` says which version this is. Exit codes: 0 done, 2 something that "
        "you can mend (one line says what), 130 after Ctrl+C; others stand at their command."
    )
    return page(
        f"`{name}`",
        paragraph(_help(root)),
        index,
        paragraph(exits),
        *(_command(words, command) for words, command in found),
    )


def _command(words: str, command: Any) -> str:
    parameters = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    kinds = get_type_hints(command.callback)
    usage = " ".join([words, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)])
    return "\n\n".join(
        part
        for part in (
            f"## {words}",
            paragraph(_help(command)),
            f"    {usage}",
            table(["argument", "meaning"], ([code(_argument(one)), one.help or ""] for one in arguments)),
            table(
                ["option", "default", "meaning"],
                (
                    [_option(one, kinds[one.name]), _default(one), (one.help or "") + _environment(one)]
                    for one in options
                ),
            ),
        )
        if part
    )


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _argument(one: Any) -> str:
    name = one.metavar or str(one.name).upper()
    if one.nargs != 1 and not name.endswith("..."):
        name += "..."
    return str(name if one.required or name.startswith("[") else f"[{name}]")


def _option(one: Any, kind: Any) -> str:
    names = ", ".join(code(name) for name in one.opts)
    if one.is_flag:
        return names
    return f"{names} {code(_kind(one, kind))}" + (" (again for more)" if one.multiple else "")


def _kind(one: Any, kind: Any) -> str:
    return one.metavar or "|".join(_words(kind))


def _words(kind: Any) -> Iterator[str]:
    """Yield what a value of a type looks like: a word, or each of those that may be chosen."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        yield from (str(choice.value) for choice in kind)
        return
    inner = [one for one in get_args(kind) if one is not type(None)]
    if inner:
        yield from _words(inner[0])
        return
    yield {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _default(one: Any) -> str:
    if one.required:
        return "must be given"
    value = getattr(one.default, "value", one.default)
    if one.is_flag or value is None or value == "" or callable(value):
        return ""
    return code(value)


def _environment(one: Any) -> str:
    return f" Or the environment's {code(one.envvar)}." if one.envvar else ""
