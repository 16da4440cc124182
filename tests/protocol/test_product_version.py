"""Both programs say their version, which is that of the package, and do no more."""

from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

from dtfm_coordinator import main as coordinator
from dtfm_node import main as node


@pytest.mark.parametrize(("app", "name"), [(node.app, "dtfm-node"), (coordinator.app, "dtfm-coordinator")])
def test_a_program_says_its_version(app: typer.Typer, name: str) -> None:
    result = CliRunner().invoke(app, ["--version"], prog_name=name)
    assert (result.exit_code, result.output) == (0, f"{name} {version('dtfm')}\n")


def test_the_version_is_asked_of_the_program_and_not_of_a_command() -> None:
    result = CliRunner().invoke(node.app, ["join", "--version"], prog_name="dtfm-node")
    assert result.exit_code == 2
