"""A command whose packages are not installed says so in one line, and says which to install."""

from pathlib import Path

import pytest

from dtfm_coordinator.main import main
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import extras
from dtfm_protocol.process.extras import missing

ASKED = (
    "numpy>=1.26",
    "no-such-tensors; sys_platform == 'beos'",
    "pydantic; extra == 'coordinator'",
    "no-such-broker>=1; extra == 'coordinator'",
    "dtfm[coordinator]; extra == 'lab'",
    "no-such-plots; extra == 'lab'",
    "dtfm[lab]; extra == 'dev'",
)


@pytest.fixture
def lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an installed `dtfm` ask for packages of which some are not installed."""
    (tmp_path / "dtfm-0.dist-info").mkdir()
    lines = ["Metadata-Version: 2.1", "Name: dtfm", "Version: 0", *(f"Requires-Dist: {one}" for one in ASKED)]
    (tmp_path / "dtfm-0.dist-info" / "METADATA").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("coordinator", ["no-such-broker"]),
        ("lab", ["no-such-broker", "no-such-plots"]),
        ("dev", ["no-such-broker", "no-such-plots"]),
        ("other", []),
    ],
)
def test_an_extra_lacks_what_is_not_installed_of_it_and_of_those_that_it_includes(
    extra: str, expected: list[str]
) -> None:
    assert missing(extra, ASKED) == expected


def test_this_environment_has_all_extras() -> None:
    for extra in ("coordinator", "data", "lab", "dev"):
        extras.require(extra)


@pytest.mark.usefixtures("lacking")
def test_what_is_missing_is_one_line() -> None:
    with pytest.raises(UserError) as caught:
        extras.require("coordinator")
    assert str(caught.value) == "this needs the coordinator's packages: pip install 'dtfm[coordinator]'"


@pytest.mark.usefixtures("lacking")
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", "no-such-job.toml", "--state-dir", "no-such-folder"], "coordinator"),
        (["status", "--state-dir", "no-such-folder"], "coordinator"),
        (["network", "home", "--nodes", "2", "--out", "view.json"], "lab"),
        (["compare", "no-such-view.json"], "lab"),
    ],
)
def test_no_command_of_the_coordinator_begins_without_its_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], extra: str
) -> None:
    monkeypatch.setattr("sys.argv", ["dtfm-coordinator", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"error: this needs the {extra}'s packages: pip install 'dtfm[{extra}]'\n")


@pytest.mark.usefixtures("lacking")
def test_help_needs_no_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["dtfm-coordinator", "--help"])
    main()
    assert "Have a community train a language model." in capsys.readouterr().out
