"""What the peers' time goes into in a simulated step."""

import pytest

from dtfm_coordinator.allocator.simulator.peer_time import peer_times, time_shares
from dtfm_coordinator.allocator.workload import predict
from tests.coordinator.lettered_swarm import plan, swarm, work


def test_shares_of_a_pipeline_of_two() -> None:
    view = swarm("ab", gbps=1.0, ms=2.0)
    played = predict(view, work(1), plan("ab"))
    times, shares = peer_times(played), time_shares(played)
    # b waits 20 ms for a's forward and 10 ms for its message; a waits for both of b's actions, and as long; nobody
    # reduces anything: what is left is waiting for the commit.
    communication = sum(time.transfer for time in times.values())
    assert communication == pytest.approx(0.02)
    assert all(time.exchange == 0 for time in times.values())
    whole = 2 * played.cost.total
    assert shares.communication == pytest.approx(0.02 / whole)
    assert shares.compute == pytest.approx(sum(time.compute + time.optimizer for time in times.values()) / whole)
    assert sum(shares) == pytest.approx(1)


def test_replicas_that_reduce_communicate_only_while_their_messages_are_on_the_way() -> None:
    slow = swarm("ab", gbps=0.001, ms=0.0, slow={"b": 3.0})
    played = predict(slow, work(2), plan("a", "b"))
    times = peer_times(played)
    # a has computed first: until b has, half of the messages are on their way, and then the other half.
    assert 0 < times["a"].exchange <= times["a"].reduction
    assert times["b"].exchange == pytest.approx(times["b"].reduction)
    shares = time_shares(played)
    assert shares.communication == pytest.approx(
        sum(time.exchange for time in times.values()) / (2 * played.cost.total)
    )
