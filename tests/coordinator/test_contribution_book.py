"""What the coordinator signs of a member's work follows from plans and steps, and is no more than can be true."""

import time
from pathlib import Path

import pytest

from dtfm_coordinator.records.contribution_book import ContributionBook
from dtfm_coordinator.records.member_records import append_shares
from dtfm_protocol.control.contribution_record import ContributionStatement
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.job import amendments_file
from dtfm_protocol.job.amendment import Amendment
from dtfm_protocol.job.amendments_file import write_amendments
from dtfm_protocol.job.metrics_file import MetricsFile
from tests.coordinator.peers import JOB, row
from tests.coordinator.test_member_records import plan
from tests.harness.membership import OWNER, SWARM

TOKENS = JOB.training.tokens


class Run:
    """A run as its state folder has it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1e12
        self.rows = MetricsFile(folder / "metrics.jsonl")
        certificate = authority_certificate(OWNER)
        self.book = ContributionBook(folder, SWARM, JOB, OWNER, certificate, lambda: self.now)

    def begin(self, version: int, *routes: str, **names: str) -> None:
        append_shares(self.folder, plan(version, *routes), self.rows, names=names)

    def step(self, number: int, version: int, tokens: int = TOKENS, seconds: float = 1e-6) -> None:
        self.rows.append(row(number, plan_version=version).model_copy(update={"tokens": tokens, "seconds": seconds}))

    def of(self, peer: str) -> ContributionStatement:
        record = self.book.record(peer)
        assert record is not None
        return record.said_by(OWNER.peer_id)


def test_a_member_is_told_which_layers_of_how_many_tokens_it_has_computed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin(1, "ab", "cb", a="attic", b="old")
    run.step(1, 1)
    run.step(2, 1)
    assert run.of("b").layers == ((1, 4),)
    run.begin(2, "a", "b", b="cellar")
    run.step(3, 2)
    said = run.of("b")
    assert (said.tokens, said.steps, said.first_step, said.last_step) == (2.5 * TOKENS, 3, 1, 3)
    assert (said.layers, said.of_layers, said.name) == (((0, 4),), 4, "cellar")
    assert said.share == pytest.approx((2 * 3 + 0.5 * 4) / (3 * 4))
    assert (said.peer, said.swarm, said.job, said.at) == ("b", SWARM, JOB.name, run.now)
    assert run.of("c").layers == ((0, 1),)
    assert run.book.record("nobody") is None
    assert run.of("a").name == "", "it was called otherwise once"


def test_layers_with_a_gap_between_them_stay_apart(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for version, layers in enumerate((((0, 1), (1, 4)), ((0, 2), (2, 3), (3, 4))), 1):
        routes = (("a", "b"), ("b", "c", "a"))[version - 1]
        made = plan(version, "ab").model_copy(update={"stages": layers, "routes": (routes,)})
        append_shares(tmp_path, made, run.rows)
        run.step(version, version)
    assert run.of("a").layers == ((0, 1), (3, 4))
    assert run.of("b").layers == ((0, 4),)


def test_a_member_whose_steps_were_all_lost_has_contributed_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin(1, "a")
    run.step(1, 1)
    assert run.of("a").steps == 1
    run.rows.forget_after(0)
    assert run.book.record("a") is None


def test_who_reports_more_than_a_step_has_gains_nothing_by_it(tmp_path: Path) -> None:
    """Tokens are the job's, and no more seconds count than the plan was in force."""
    run = Run(tmp_path)
    run.begin(1, "a")
    run.step(1, 1, tokens=10**15, seconds=1e8)
    run.now = time.time() + 30.0
    assert run.of("a").tokens == TOKENS
    assert run.of("a").seconds == pytest.approx(30.0, abs=5.0)


def test_a_larger_batch_counts_in_full(tmp_path: Path) -> None:
    run = Run(tmp_path)
    batch = {"training.global_batch": 2 * JOB.training.global_batch}
    write_amendments(tmp_path / amendments_file.NAME, (Amendment(number=1, from_step=1, values=batch),))
    run.begin(1, "a")
    run.step(1, 1, tokens=2 * TOKENS)
    assert run.of("a").tokens == 2 * TOKENS
