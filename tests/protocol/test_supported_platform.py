"""On a system for which the programs are not, they say so in one line, and name one that is at hand."""

import subprocess
import sys

import pytest

from dtfm_protocol.process.supported_platform import platform_fault

MISSING = ("fcntl", "resource", "termios", "uvloop", "hivemind", "grp", "pwd")
"""Modules that Windows lacks."""


@pytest.mark.parametrize("platform", ["linux", "linux2", "darwin"])
def test_some_systems_are_supported(platform: str) -> None:
    assert platform_fault(platform) == ""


@pytest.mark.parametrize("platform", ["win32", "cygwin", "freebsd14", "emscripten"])
def test_each_other_is_told_of_wsl(platform: str) -> None:
    assert "WSL2" in platform_fault(platform)


@pytest.mark.process
@pytest.mark.parametrize(("package", "arguments"), [("dtfm_node", ["join"]), ("dtfm_coordinator", ["serve", "x"])])
def test_on_windows_both_programs_end_in_that_line_and_no_traceback(package: str, arguments: list[str]) -> None:
    program = (
        "import sys, asyncio, subprocess, tempfile, multiprocessing\n"
        "import typer, rich.console, psutil, platformdirs, pydantic.fields, zoneinfo, cryptography.x509\n"
        f"sys.modules.update(dict.fromkeys({MISSING!r}))\n"
        "sys.platform = 'win32'\n"
        f"from {package}.main import main\n"
        f"sys.argv = {[package, *arguments]!r}\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: dtfm does not run on Windows itself")
