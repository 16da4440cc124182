"""A node's options may stand in a file: what it says holds, unless the command line says something else."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from dtfm_node.commands.chosen_limits import ChosenLimits
from dtfm_node.commands.config_file import COMMAND_LINE_ALONE, CONFIG, NOT_KEPT, keep, read, with_options
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
    keep(text, {}, tmp_path)
    path = tmp_path / CONFIG
    assert read(path, must_exist=True) == {}
    for key in set(keys) - set(COMMAND_LINE_ALONE):
        assert f"\n#{key} = " in text, key
    assert max(map(len, text.splitlines())) <= 120
    path.write_text("memory = 4")
    keep(text, {}, tmp_path)
    assert path.read_text() == "memory = 4", "what its owner has written stays"


@pytest.mark.parametrize("key", ["device", "log-format", "lan", "port", "compile", "name"])
def test_a_line_of_the_template_without_its_hash_is_as_if_it_were_not_there(tmp_path: Path, key: str) -> None:
    """Defaults are written as they are read."""
    with JOIN.make_context("join", []) as context:
        (line,) = (
            one[1:] for one in cast(JoinCommand, JOIN).template(context).splitlines() if one.startswith(f"#{key} ")
        )
    assert options(written(tmp_path, line)) == options(tmp_path / "gone", must_exist=False)


def test_all_that_is_wrong_in_a_file_is_said_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, 'memroy = 4\nlan = "yes"\nport = -1')
    with pytest.raises(UserError) as error:
        options(path)
    assert [word for word in ("memroy", "lan is to be", "port: ") if word in str(error.value)] == [
        "memroy", "lan is to be", "port: ",
    ]  # fmt: skip


def joined(folder: Path, *arguments: str) -> dict[str, Any]:
    """What `join` with these arguments is run with, where what a join says is kept in `folder`."""
    command = cast(JoinCommand, JOIN)
    with JOIN.make_context("join", [*arguments]) as context:
        command.set_from(folder / CONFIG, context, must_exist=False)
        keep(command.template(context), command.to_keep(context, folder / CONFIG), folder)
        return dict(context.params)


FIRST = (
    "--name", "Ann's PC", "--upload", "20Mbit", "--memory", "2", "--hours", "19-23", "--threads", "1", "--lan",
    "--not-on-battery", "--device", "cpu",
)  # fmt: skip


def test_what_was_given_at_the_first_join_holds_at_the_next_one(tmp_path: Path) -> None:
    first = joined(tmp_path, *FIRST, "--timeout", "9", "--log-format", "json")
    again = joined(tmp_path)
    assert again | {"timeout": 9.0, "log_format": first["log_format"]} == first
    assert again["timeout"] is None, "that was for one start"
    assert "\nmemory = 2\n" in (tmp_path / CONFIG).read_text()


def test_what_a_later_command_line_says_wins_and_is_kept_in_turn(tmp_path: Path) -> None:
    joined(tmp_path, *FIRST)
    assert joined(tmp_path, "--memory", "3.5")["memory"] == 3.5
    again = joined(tmp_path)
    assert (again["memory"], again["upload"]) == (3.5, "20Mbit")
    assert (tmp_path / CONFIG).read_text().count("memory = ") == 2, "its own line, and that of gpu-memory"


def test_what_is_taken_back_in_the_file_stays_taken_back(tmp_path: Path) -> None:
    joined(tmp_path, *FIRST)
    path = tmp_path / CONFIG
    path.write_text(path.read_text().replace("\nmemory =", "\n#memory ="))
    assert joined(tmp_path)["memory"] is None
    assert joined(tmp_path)["threads"] == 1


def test_what_another_file_says_is_kept_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("memory = 4")
    command = cast(JoinCommand, JOIN)
    with JOIN.make_context("join", []) as context:
        command.set_from(tmp_path / "mine.toml", context, must_exist=True)
        assert command.to_keep(context, tmp_path / CONFIG) == {"memory": 4.0}
        assert command.to_keep(context, tmp_path / "mine.toml") == {}


def test_a_file_that_cannot_be_changed_line_by_line_is_left_alone(tmp_path: Path) -> None:
    text = '"memory" = 4\n'
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=r"cannot keep what you have allowed .* memory = 2"):
        keep("", {"memory": 2.0}, tmp_path)
    assert path.read_text() == text
    assert with_options("a = 1 # why\n#b = 2\n", {"a": 3, "b": True, "c": 'x"\x7f'}) == (
        'a = 3\nb = true\nc = "x\\"\\u007f"\n'
    )


def test_options_of_one_start_are_options(tmp_path: Path) -> None:
    with JOIN.make_context("join", []) as context:
        text = cast(JoinCommand, JOIN).template(context)
    assert all(f"\n#{key} = " in text for key in NOT_KEPT)


def test_errors_name_where_an_option_was_set_and_all_of_them(tmp_path: Path) -> None:
    path = written(tmp_path, 'upload = 20\nhours = "25-7"')
    command = cast(JoinCommand, JOIN)
    with JOIN.make_context("join", ["--memory", "0"]) as context:
        command.set_from(path, context, must_exist=True)
        with pytest.raises(UserError) as error:
            ChosenLimits.of(context.params, partial(command.called, context))
    for words in (f"{path}: upload 20: say a number", f"{path}: hours 25-7: 25-7 is no part", "--memory 0: a node"):
        assert words in str(error.value)


def test_an_unknown_key_ends_join_before_anything_else(tmp_path: Path) -> None:
    from tests.node.doctor_hosts import INVITE

    path = written(tmp_path, "memroy = 4")
    result = CliRunner().invoke(app, ["join", INVITE.encode(), "--state-dir", str(tmp_path), "--config", str(path)])
    assert result.exit_code == 2
    assert "did you mean memory" in result.output
    assert [one.name for one in tmp_path.iterdir()] == [CONFIG]
