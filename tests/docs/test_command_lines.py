"""Commands in the documentation are such as the programs take: each is parsed, and none is run."""

import importlib.util
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.generate.command_pages import parser

from dtfm_coordinator.commands.change_commands import parsed_values
from dtfm_coordinator.main import app as coordinator
from dtfm_node.limits.hours import Hours
from dtfm_node.limits.pause_order import seconds_of
from dtfm_node.limits.traffic_rate import bytes_a_second
from dtfm_node.main import app as node
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from tests.docs.markdown_pages import PAGES, ROOT, CommandLine, command_lines, mentioned_commands

CHECKS: dict[str, Callable[[Any], object]] = {
    "changes": parsed_values,
    "hours": Hours.parsed,
    "span": seconds_of,
    "upload": lambda rate: bytes_a_second(rate, "--upload"),
    "download": lambda rate: bytes_a_second(rate, "--download"),
}
"""How commands look at values that their parser takes as text, by the parameter's name."""
SHOWN = re.compile(r"[A-Z_]{3,}(=[A-Z_]{3,})?(\.\.\.)?|\.\.\.")
"""A word that stands for a value."""
WRONG: tuple[type[Exception], ...] = (typer.BadParameter.__mro__[1], UserError)  # type: ignore[assignment]


@cache
def program(name: str) -> Any:
    return parser({"dtfm-node": node, "dtfm-coordinator": coordinator}[name])


def command_of(words: tuple[str, ...]) -> tuple[Any, list[str]]:
    """The command that words call, and the words after it. Raises an error of typer's where it is none."""
    found, rest = program(words[0]), list(words[1:])
    context = found.make_context(words[0], [], resilient_parsing=True)
    while getattr(found, "commands", None) and rest and not rest[0].startswith("-"):
        name, found, rest = found.resolve_command(context, rest)
        if found is None:
            raise UserError(f"there is no command {name}")
    return found, rest


def fault(line: CommandLine) -> str:
    """What is wrong with a command of the two programs; "": nothing."""
    try:
        command, rest = command_of(line.words)
        if not {"--help", "--version"} & set(rest):
            given = command.make_context(line.words[0], rest).params
            for name, check in CHECKS.items():
                value = given.get(name)
                if value is not None and not SHOWN.fullmatch(value if isinstance(value, str) else value[0]):
                    check(value)
    except WRONG as error:
        return str(error) or type(error).__name__
    return ""


def of(*programs: str) -> list[CommandLine]:
    return [line for page in PAGES for line in command_lines(page) if line.words[0] in programs]


def test_the_programs_take_every_command_in_a_block_of_code() -> None:
    lines = of("dtfm-node", "dtfm-coordinator")
    assert {str(line): wrong for line in lines if (wrong := fault(line))} == {}
    assert len(lines) > 50, "the pages were not read"


def test_commands_and_options_that_the_text_names_exist() -> None:
    wrong = {}
    for line in (line for page in PAGES for line in mentioned_commands(page)):
        words = tuple(word.split("|")[0] for word in line.words)
        try:
            command, rest = command_of(words)
        except WRONG as error:
            wrong[str(line)] = str(error)
            continue
        known = {name for one in command.params for name in one.opts} | {"--help", "--version"}
        if unknown := {word for word in rest[: (*rest, "--").index("--")] if word.startswith("--")} - known:
            wrong[str(line)] = f"no such option: {unknown}"
    assert wrong == {}


@pytest.mark.parametrize("words", ["dtfm-node join --uplaod 10Mbit", "dtfm-node join --upload 10", "dtfm-node joyn",
                                   "dtfm-coordinator set training.rate=1 --state-dir run",
                                   "dtfm-coordinator serve job.toml"])  # fmt: skip
def test_a_wrong_command_is_found(words: str) -> None:
    assert fault(CommandLine("", tuple(words.split())))


def test_examples_that_commands_take_are_jobs() -> None:
    named = {
        word for line in of("dtfm-node", "dtfm-coordinator") for word in line.words if word.startswith("examples/")
    }
    assert {Path(name).suffix for name in named} <= {".toml", ".csv"}
    assert "examples/study.toml" in named
    for name in named:
        if name.endswith(".toml"):
            Job.load(ROOT / name)
        else:
            assert (ROOT / name).exists()


def test_make_has_every_target_that_is_named() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    for line in of("make"):
        assert {word for word in line.words[1:] if "=" not in word} <= targets, line


def test_python_has_every_module_that_is_named_with_its_options() -> None:
    for line in of("python"):
        spec = importlib.util.find_spec(line.words[2])
        assert spec is not None, line
        folder = Path(str(spec.origin)).parent
        files = folder.rglob("*.py") if spec.submodule_search_locations else [Path(str(spec.origin))]
        source = "".join(path.read_text(encoding="utf-8") for path in files)
        if line.words[2].partition(".")[0] in {"benchmarks", "docs", "tests"}:
            assert [word for word in line.words[3:] if word.startswith("--") and f'"{word}"' not in source] == [], line
