"""Versions that work together, and what is said of them."""

import pytest

from dtfm_protocol.process.version_agreement import Distance, distance, told_to_coordinator, told_to_node


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("0.1.0", "0.1.9", Distance.NONE),
        ("0.1.0", "0.2.0", Distance.NEAR),
        ("1.4.2", "1.3.0.dev5+local", Distance.NEAR),
        ("0.1.0", "0.3.0", Distance.FAR),
        ("1.0.0", "0.9.0", Distance.FAR),
        ("1", "1.1", Distance.NEAR),
        ("0.1.0", "", Distance.NONE),
        ("0.1.0", "banana", Distance.NONE),
    ],
)
def test_versions_work_together_up_to_one_minor_version_apart(one: str, other: str, apart: Distance) -> None:
    assert distance(one, other) is distance(other, one) is apart


def test_both_sides_are_told_who_is_to_upgrade_and_to_what() -> None:
    assert told_to_node("0.1.0", "0.3.2").endswith("install dtfm 0.3 here and start the node again")
    assert "ask the swarm's owner to upgrade" in told_to_node("0.3.2", "0.1.0")
    assert told_to_coordinator("0.3.2", "0.1.0").endswith("its person is to install dtfm 0.3")
    assert "upgrade this coordinator" in told_to_coordinator("0.1.0", "1.0.0")
    assert "a major version apart" in told_to_coordinator("0.1.0", "1.0.0")


def test_versions_that_work_together_are_worth_a_line_and_equal_ones_none() -> None:
    assert told_to_node("0.1.0", "0.2.0").endswith("0.2.0: they work together")
    assert "they work together" in told_to_coordinator("0.1.0", "0.2.0")
    assert told_to_node("0.1.0", "0.1.3") == told_to_coordinator("0.1.0", "0.1.3") == ""
