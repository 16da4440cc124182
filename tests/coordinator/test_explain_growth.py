"""What `explain` says of idle peers, and of the next node that joins."""

import pytest

from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds
from dtfm_coordinator.allocator.workload import predict
from dtfm_coordinator.tools.explain import step_report
from dtfm_coordinator.tools.explain.idle_peers import tried, with_replica
from dtfm_coordinator.tools.explain.next_node import Growth, growth, with_median_node
from dtfm_protocol.job.job_file import Planning
from tests.coordinator.lettered_swarm import plan, swarm, work


def test_an_idle_peer_is_tried_as_a_replica_of_each_stage() -> None:
    of, view = plan("ab", "ab", "ab", "ab"), swarm("abc", gbps=100.0, ms=0.0)
    (one,) = tried(of, view, work(), ("c",))
    assert one.stage in (0, 1)
    best = min(
        predict(view, work(), plan(*routes)).cost.total
        for routes in (("cb", "ab", "cb", "ab"), ("ab", "ac", "ab", "ac"), ("ab", "cb", "ab", "cb"))
    )
    assert one.seconds <= best * 1.2
    assert one.seconds < predict(view, work(), of).cost.total


def test_an_idle_peer_that_can_serve_nothing_is_told_why() -> None:
    of = plan("ab", "ab", "ab", "ab")
    hopeless = {
        "too slow": swarm("abc", slow={"c": 100.0}),
        "memory": swarm("abc").model_copy(
            update={"nodes": tuple(n.model_copy(update={"memory_bytes": 10.0}) for n in swarm("abc").nodes)}
        ),
        "cannot reach": swarm("abc", links={"ac": 0.0, "bc": 0.0}),
    }
    for reason, view in hopeless.items():
        (one,) = tried(of, view, work(), ("c",))
        assert one.stage is None
        assert reason in one.obstacle


def test_a_new_replica_takes_its_share_from_all_over_the_step() -> None:
    seconds = dict.fromkeys("ab", ActionSeconds(1, 2))
    joined = with_replica(plan(*["ab"] * 8), "c", 1, seconds, seconds["b"])
    assert joined is not None
    assert joined.micro_batches("c") in ((0, 2, 4, 6), (1, 3, 5, 7))
    assert with_replica(plan("ab"), "c", 1, seconds, seconds["b"]) is None


def test_the_next_node_is_the_median_of_its_peers() -> None:
    view = swarm("abc", slow={"b": 3.0, "c": 5.0}, links={"ab": 1.0, "ac": 2.0, "bc": 3.0}, memory_bytes=4e9)
    larger = with_median_node(view, work())
    node = larger.nodes[-1]
    assert node.layer_seconds is not None
    assert node.layer_seconds.weight == pytest.approx(0.03)
    assert (node.layer_seconds.forward, node.memory_bytes, node.up_gbps) == (pytest.approx(0.03), 4e9, None)
    assert larger.bandwidth_gbps[3, :3] == pytest.approx([1.5, 2.0, 2.5])
    assert larger.latency_ms[:3, 3] == pytest.approx([1.0] * 3)
    assert larger.part(view.ids) == view


def test_the_next_node_brings_a_gain_where_links_are_free_and_none_where_the_layout_is_fixed() -> None:
    view = swarm("ab", gbps=1000.0, ms=0.0)
    gain = growth(view, work(12), evaluations=200)
    assert gain is not None
    assert gain.is_noticeable
    assert gain.gain == pytest.approx(1 - gain.then / gain.now)
    assert 0.2 < gain.gain < 0.4
    fixed = growth(view, work(12, Planning(stages=2, replicas=1)), evaluations=200)
    assert fixed is not None
    assert not fixed.is_noticeable
    assert step_report.growth_lines(fixed, fixed.now)[0].startswith("the next node would bring nothing")
    assert growth(swarm("a"), work(12), evaluations=10) is None


@pytest.mark.parametrize(
    ("found", "total", "words"),
    [
        (Growth(7.05, 7.33, True, 7.40), 7.59, ["a longer search finds 7.05 s", "the next node: not to be told"]),
        (Growth(7.05, 6.90, True, 7.40), 7.05, ["the next node: not to be told"]),
        (Growth(7.05, 7.33, False, 7.05), 7.05, ["the next node: not to be told"]),
        (Growth(7.05, 7.05, False, 7.05), 7.05, ["the next node would bring nothing"]),
        (Growth(7.05, 6.00, True, 7.40), 7.05, ["the next node would bring 14.9 %"]),
    ],
)
def test_what_two_searches_differ_by_anyhow_is_no_verdict(found: Growth, total: float, words: list[str]) -> None:
    lines = step_report.growth_lines(found, total)
    assert [line[: len(start)] for line, start in zip(lines, words, strict=True)] == words
