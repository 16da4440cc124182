"""A person sees what a machine has contributed, checks others' records, and keeps one's own for good."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dtfm_node.commands.consent import Consent
from dtfm_node.commands.contribution import Deletion
from dtfm_node.control.contribution_keeper import NAME
from dtfm_node.control.contribution_words import contributed
from dtfm_node.devices.device_folders import DEVICES
from dtfm_node.main import app
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.state_dir import locked
from tests.harness.contributions import record_of, statement_of
from tests.harness.membership import OWNER, SWARM, invite_of

ALICE = Identity.generate().peer_id


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this user's data lie."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "dtfm"


def joined(data: Path) -> Path:
    """The state folder of a node that has contributed."""
    folder = data / "nodes" / SWARM
    folder.mkdir(parents=True, mode=0o700)
    with locked(folder):
        Consent(folder, SWARM).keep()
    (folder / "invite").write_text(invite_of(OWNER).encode() + "\n")
    (folder / NAME).write_text(record_of(ALICE).model_dump_json())
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def words(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {},
            "is 25 % of all the computing: in 411 steps, 3 h, 1.25 million tokens went through the layers "
            "that the machine had then (over the run, layers 1-2 and 6 of 8).",
        ),
        (
            {"layers": ((0, 8),), "share": 1.0},
            "100 % of all the computing: in 411 steps, 3 h, 1.25 million tokens went through the layers "
            "that the machine had then (over the run, all 8 of them).",
        ),
        (
            {"layers": ((3, 4),), "steps": 1, "share": 0.001},
            "is less than 1 % of all the computing: in 1 step, 3 h, 1.25 million tokens went through layer 4 of 8.",
        ),
        (
            {"tokens": 12_400, "layers": ((0, 1), (2, 3), (4, 8))},
            "12,400 tokens went through the layers that the machine had then (over the run, layers 1, 3 and 5-8 of 8).",
        ),
        ({"tokens": 3 * 10**12, "seconds": 5.0}, "3 trillion tokens went through"),
    ],
)
def test_a_contribution_is_said_in_a_sentence(values: dict[str, object], said: str) -> None:
    assert said in contributed(statement_of(ALICE, **values))


def test_it_is_shown_without_saying_where_it_is(data: Path) -> None:
    folder = joined(data)
    result = run("contribution")
    assert result.exit_code == 0
    for part in (
        f"attic ({ALICE[-6:]})",
        "It did 25 % of all the computing: in 411 steps",
        OWNER.peer_id,
        ALICE,
    ):
        assert part in words(result)
    assert str(folder / NAME) in result.output
    assert run("contribution", "--state-dir", folder).output == result.output


def test_where_there_is_none_it_says_how_one_comes(tmp_path: Path) -> None:
    result = run("contribution")
    assert result.exit_code == 2
    assert "no record of a contribution is here yet" in words(result)
    assert run("contribution", "--state-dir", tmp_path).exit_code == 2


def test_a_record_is_checked_by_whom_one_trusts(data: Path, tmp_path: Path) -> None:
    """A stranger's word on who coordinates counts for nothing: it is asked for, unless an invite says it."""
    path, other = tmp_path / "record.json", Identity.generate()
    path.write_text(record_of(ALICE).model_dump_json())
    result = run("contribution", "--check", path)
    assert result.exit_code == 2
    assert "say whom you trust with --coordinator" in words(result)
    result = run("contribution", "--check", path, "--coordinator", OWNER.peer_id)
    assert result.exit_code == 0
    assert f"Genuine: the coordinator {OWNER.peer_id} has signed it." in result.output
    result = run("contribution", "--check", path, "--coordinator", other.peer_id)
    assert result.exit_code == 2
    assert f"not signed by the coordinator {other.peer_id}, but by {OWNER.peer_id}" in words(result)
    folder = joined(data)
    assert run("contribution", "--check", path).exit_code == 0
    assert run("contribution", "--check", path, "--state-dir", folder).exit_code == 0
    assert run("contribution", "--check", path, "--state-dir", tmp_path).exit_code == 2
    path.write_text(record_of(ALICE, other).model_dump_json())
    assert run("contribution", "--check", path).exit_code == 2


def test_an_altered_record_and_what_is_none_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in (record_of(ALICE).model_dump_json().replace("411", "999"), "{}", ""):
        path.write_text(text)
        result = run("contribution", "--check", path, "--coordinator", OWNER.peer_id)
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert run("contribution", "--check", tmp_path / "nowhere").exit_code == 2


def test_when_a_node_is_removed_its_record_stays(data: Path) -> None:
    folder = joined(data)
    before = (folder / NAME).read_bytes()
    result = run("remove", "--yes")
    assert result.exit_code == 0
    kept = data / "contributions" / f"{SWARM}-{ALICE[-6:]}.json"
    assert kept.read_bytes() == before
    assert str(kept) in result.output
    assert not folder.exists()
    assert "It did 25 % of all the computing" in words(run("contribution"))


def test_each_device_has_its_own_record_which_stays_too(data: Path) -> None:
    folder = joined(data)
    (folder / NAME).unlink()
    peers = [Identity.generate().peer_id for _ in range(2)]
    for number, peer in enumerate(peers):
        device = folder / DEVICES / f"cuda-{number}"
        with locked(device):
            Consent(device, SWARM).keep()
        (device / NAME).write_text(record_of(peer).model_dump_json())
    assert run("contribution").output.count("It did 25 %") == 2
    assert run("contribution", "--state-dir", folder).output == run("contribution").output
    result = run("remove", "--yes")
    assert result.exit_code == 0
    assert {path.name for path in (data / "contributions").iterdir()} == {f"{SWARM}-{one[-6:]}.json" for one in peers}


def test_what_only_looks_like_a_record_goes_with_the_rest(data: Path) -> None:
    folder = joined(data)
    (folder / NAME).write_text(record_of(ALICE, swarm="../../evil").model_dump_json())
    assert run("remove", "--yes").exit_code == 0
    assert not (data / "contributions").exists()


def test_records_are_deleted_when_somebody_says_so(data: Path) -> None:
    """Those that a removal has kept, too; nothing else in their folder is touched."""
    joined(data)
    assert run("remove", "--yes").exit_code == 0
    folder = joined(data)
    kept, mine = data / "contributions" / f"{SWARM}-{ALICE[-6:]}.json", data / "contributions" / "thesis.txt"
    mine.write_text("mine")
    refused = run("contribution", "--delete")
    assert (refused.exit_code, words(refused)) == (2, "error: this is no terminal to ask at: give --yes")
    assert kept.exists()
    result = run("contribution", "--delete", "--yes")
    assert (result.exit_code, words(result)) == (0, "deleted: 2 records of what this machine has contributed")
    assert [kept.exists(), (folder / NAME).exists(), mine.exists()] == [False, False, True]
    assert (folder / "invite").exists()
    assert "no record of a contribution is here yet" in words(run("contribution", "--delete", "--yes"))


def test_the_question_names_each_record_and_an_empty_folder_goes(data: Path) -> None:
    folder = joined(data)
    assert run("remove", "--yes").exit_code == 0
    deletion = Deletion.of(None)
    (path,) = deletion.files
    assert f"  {path}, attic ({ALICE[-6:]}) in the run " in deletion.screen()
    assert max(map(len, deletion.screen().splitlines()[2:])) <= 90
    assert deletion.carry_out() == "deleted: the record of what this machine has contributed"
    assert not (data / "contributions").exists()
    assert not folder.exists()


def test_the_record_of_a_node_that_runs_is_not_deleted(data: Path) -> None:
    folder = joined(data)
    with locked(folder):
        result = run("contribution", "--delete", "--yes")
    assert result.exit_code == 2
    assert f"a node runs with {folder}" in words(result)
    assert (folder / NAME).exists()


def test_what_is_checked_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(record_of(ALICE).model_dump_json())
    assert run("contribution", "--check", path, "--delete", "--yes").exit_code == 2
    assert path.exists()
