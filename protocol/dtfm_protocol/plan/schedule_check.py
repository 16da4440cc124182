"""The check that a schedule can run: everything once, nothing before what it needs, no circle of waiting, within
memory.

It looks at the orders alone, whoever made them.
"""

from collections.abc import Mapping, Sequence

from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Action, Kind, most_in_flight

Orders = Mapping[str, Sequence[Action]]
"""Actions of each peer in one step, in order."""


class Unrunnable(Exception):
    """The first fault for which orders of compute cannot be run."""


def check(plan: Plan, orders: Orders, in_flight: Mapping[str, int] | None = None) -> None:
    """Check the orders of all peers of `plan`.

    Args:
        in_flight: the most micro-batches whose activations each peer has memory for; without it there is no bound.

    Raises:
        Unrunnable: the orders cannot be run; it names the first fault.
    """
    shares: dict[str, list[int]] = {peer: [] for peer in plan.peers}
    for index, route in enumerate(plan.routes):
        for peer in route:
            shares[peer].append(index)
    for peer, share in shares.items():
        _check_complete(peer, orders.get(peer, ()), share)
        most = most_in_flight(orders[peer])
        if in_flight is not None and most > in_flight[peer]:
            raise Unrunnable(f"{peer} would keep {most} micro-batches in flight and has memory for {in_flight[peer]}")
    _check_progress(plan, orders)


def _check_complete(peer: str, order: Sequence[Action], share: Sequence[int]) -> None:
    """Check that each micro-batch has its forward, backward and, where that is apart, weight action once, in order."""
    splits = any(action.kind == "weight" for action in order)
    kinds: tuple[Kind, ...] = ("forward", "backward", "weight") if splits else ("forward", "backward")
    place = {(action.kind, action.micro_batch): number for number, action in enumerate(order)}
    if len(place) != len(order) or len(order) != len(kinds) * len(share):
        raise Unrunnable(f"{peer} has {len(order)} actions, {len(kinds) * len(share)} different ones belong")
    for index in share:
        places = [place.get((kind, index)) for kind in kinds]
        known = [number for number in places if number is not None]
        if len(known) != len(kinds):
            raise Unrunnable(f"{peer} leaves out a part of micro-batch {index}")
        if known != sorted(known):
            raise Unrunnable(f"{peer} has the parts of micro-batch {index} out of order")


def _check_progress(plan: Plan, orders: Orders) -> None:
    """Run all orders, each action as soon as what it needs is done, wherever that is."""
    done: set[tuple[int, Action]] = set()
    place = dict.fromkeys(plan.peers, 0)
    stage_of = {peer: stage for stage in range(len(plan.stages)) for peer in plan.replicas(stage)}
    moving = list(plan.peers)
    while moving:
        peer = moving.pop()
        stage, order = stage_of[peer], orders[peer]
        while place[peer] < len(order) and _is_ready(order[place[peer]], stage, len(plan.stages), done):
            action = order[place[peer]]
            done.add((stage, action))
            place[peer] += 1
            towards = stage + 1 if action.kind == "forward" else stage - 1
            if action.kind != "weight" and 0 <= towards < len(plan.stages):
                moving.append(plan.routes[action.micro_batch][towards])
    stuck = [peer for peer in plan.peers if place[peer] < len(orders[peer])]
    if stuck:
        action = orders[stuck[0]][place[stuck[0]]]
        raise Unrunnable(
            f"{len(stuck)} peers wait for each other: {stuck[0]} for the input of its {action.kind} of micro-batch "
            f"{action.micro_batch}"
        )


def _is_ready(action: Action, stage: int, stages: int, done: set[tuple[int, Action]]) -> bool:
    index = action.micro_batch
    if action.kind == "forward":
        return stage == 0 or (stage - 1, Action("forward", index)) in done
    if action.kind == "backward" and stage < stages - 1:
        return (stage + 1, Action("backward", index)) in done
    return True  # what the same peer has to do before it is before it in its own order
