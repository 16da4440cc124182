"""The replacement of a coordinator's key on its disk: what is there before, after, and where it was cut off."""

import os
import time
from pathlib import Path

import pytest

from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.plan_change.plan_change_events import Announced, Durable
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_coordinator.serve.key_replacement import ask, is_due, own_certificate, replace_key
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import authority_certificate, issue_credential, read_credential
from dtfm_protocol.identity.key_succession import MOST_SUCCESSIONS
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import DAY, SWARM, TOKEN, coordinator_of


def replace(folder: Path) -> tuple[Identity, Identity]:
    """Replace the key in `folder`, and return both."""
    before = Identity.load_or_create(folder / "key")
    ask(folder)
    return before, replace_key(folder, SWARM)


def test_the_new_key_is_in_the_old_ones_place_and_its_certificate_says_why(tmp_path: Path) -> None:
    PlanRecord.keeping(Durable(Announced(called=9, in_force=7))).save(tmp_path)
    before, after = replace(tmp_path)
    assert Identity.load_or_create(tmp_path / "key").peer_id == after.peer_id != before.peer_id
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert not is_due(tmp_path)
    kept = [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()]
    assert not any(before.to_libp2p()[4:36] in one for one in kept), "the old key is nowhere"
    own = own_certificate(tmp_path, after)
    (succession,) = read_credential(own).successions
    assert (succession.before, succession.after, succession.called) == (before.peer_id, after.peer_id, 9)
    member = coordinator_of(before)
    member.trust(own)
    assert tuple(member.coordinators) == (after.peer_id,)


def test_the_ledger_has_the_old_certificate_so_that_tls_lets_in_whom_it_has_enrolled(tmp_path: Path) -> None:
    before, after = replace(tmp_path)
    own, trusted = own_certificate(tmp_path, after), LedgerFile(tmp_path).ledger.trusted
    assert trusted == {authority_certificate(before).hex()}
    admission = Admission(SWARM, [after.peer_id], own, (own, *map(bytes.fromhex, trusted)))
    alice = Identity.generate().peer_id
    assert admission.check(issue_credential(before, SWARM, alice, TOKEN, time.time() + DAY)).peer == alice
    assert authority_certificate(before) in admission.authorities


def test_a_replacement_that_was_cut_off_is_finished_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Identity.load_or_create(tmp_path / "key")
    wanted = ask(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", _fail_for_keys(os.replace))
        with pytest.raises(UserError, match="cannot replace"):
            replace_key(tmp_path, SWARM)
    assert is_due(tmp_path)
    assert own_certificate(tmp_path, before) == authority_certificate(before), "until then the old one is in force"
    assert replace_key(tmp_path, SWARM).peer_id == wanted.peer_id
    assert len(read_credential(own_certificate(tmp_path, wanted)).successions) == 1


def _fail_for_keys(replace: object) -> object:
    def failing(source: Path, target: Path) -> None:
        if Path(target).name == "key":
            raise OSError(5, "Input/output error")
        replace(source, target)  # type: ignore[operator]

    return failing


def test_after_many_replacements_the_newest_ones_are_known(tmp_path: Path) -> None:
    keys = [replace(tmp_path)[1] for _ in range(MOST_SUCCESSIONS + 2)]
    chain = read_credential(own_certificate(tmp_path, keys[-1])).successions
    assert [one.after for one in chain] == [key.peer_id for key in keys[-MOST_SUCCESSIONS:]]
