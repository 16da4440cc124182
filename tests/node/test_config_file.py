"""A node's options may stand in a file: what it says holds, unless the command line says something else."""

from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from dtfm_node.commands.config_file import COMMAND_LINE_ALONE, CONFIG, keep_template, read
from dtfm_node.commands.join_command import JoinCommand
from dtfm_node.main import app
from dtfm_protocol.errors import UserError

JOIN: Any = cast(typer.core.TyperGroup, typer.main.get_command(app)).commands["join"]


def options(path: Path, *arguments: str, must_exist: bool = True) -> dict[str, Any]:
    """What `join` is run with, with these arguments and the file at `path`."""
    with JOIN.make_context("join", [*arguments]) as context:
        cast(JoinCommand, JOIN).set_from(path, context, must_exist=must_exist)
        return dict(context.params)


def written(folder: Path, text: str) -> Path:
    (folder / CONFIG).write_text(text)
    return folder / CONFIG


def test_the_file_sets_what_the_command_line_leaves_alone(tmp_path: Path) -> None:
    path = written(
        tmp_path, 'memory = 4\nname = "Ann\'s PC"\nlan = true\ncompile = true\nlog-format = "json"\nport = 7'
    )
    given = options(path, "--port", "9")
    assert (given["memory"], given["name"], given["lan"], given["compiled"]) == (4.0, "Ann's PC", True, True)
    assert given["port"] == 9
    assert given["log_format"].value == "json"
    assert given["disk"] is None, "and the rest is as ever"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memroy = 4", "no option memroy; did you mean memory"),
        ("zzz = 4", "--help"),
        ("yes = true", "no option yes"),
        ("port = -1", "port: "),
        ("memory = true", "memory is to be one number or text"),
        ("memory = [4]", "memory is to be one number or text"),
        ('lan = "yes"', "lan is to be true or false"),
        ('name = "a/b"', "name: letters, digits"),
        ('log-format = "xml"', "log-format: "),
        ("memory = ...", "mend that line"),
        ("[join]\nmemory = 4", "no option join"),
    ],
)
def test_what_a_file_says_wrongly_is_said_in_one_line_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        options(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        options(tmp_path / "gone.toml")
    assert options(tmp_path / "gone.toml", must_exist=False)["memory"] is None


def test_the_template_sets_nothing_and_explains_every_option(tmp_path: Path) -> None:
    with JOIN.make_context("join", []) as context:
        text = cast(JoinCommand, JOIN).template(context)
        keys = [name[2:] for one in JOIN.get_params(context) for name in one.opts[:1] if name.startswith("--")]
    keep_template(text, tmp_path)
    path = tmp_path / CONFIG
    assert read(path, must_exist=True) == {}
    for key in set(keys) - set(COMMAND_LINE_ALONE):
        assert f"\n#{key} = " in text, key
    assert max(map(len, text.splitlines())) <= 120
    path.write_text("memory = 4")
    keep_template(text, tmp_path)
    assert path.read_text() == "memory = 4", "what its owner has written stays"


@pytest.mark.parametrize("key", ["device", "log-format", "lan", "port", "compile", "name"])
def test_a_line_of_the_template_without_its_hash_is_as_if_it_were_not_there(tmp_path: Path, key: str) -> None:
    """Defaults are written as they are read."""
    with JOIN.make_context("join", []) as context:
        (line,) = (
            one[1:] for one in cast(JoinCommand, JOIN).template(context).splitlines() if one.startswith(f"#{key} ")
        )
    assert options(written(tmp_path, line)) == options(tmp_path / "gone", must_exist=False)


def test_an_unknown_key_ends_join_before_anything_else(tmp_path: Path) -> None:
    from tests.node.doctor_hosts import INVITE

    path = written(tmp_path, "memroy = 4")
    result = CliRunner().invoke(app, ["join", INVITE.encode(), "--state-dir", str(tmp_path), "--config", str(path)])
    assert result.exit_code == 2
    assert "did you mean memory" in result.output
    assert [one.name for one in tmp_path.iterdir()] == [CONFIG]
