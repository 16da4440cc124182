"""The play of given orders of compute at a plan's pace: how long a step of them would take.

`schedule` makes orders by a pace; here they are there already, and each peer keeps to its own, whatever it waits for.
"""

from collections.abc import Mapping, Sequence

from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Action, Kind


def step_microseconds(plan: Plan, orders: Mapping[str, Sequence[Action]]) -> int:
    """Return how long the compute of a step takes from its begin to its last action, messages included, if peers run
    `orders`, which can be run (`schedule_check`), and all takes what the plan's `pacing` says."""
    pace = plan.pacing
    assert pace is not None, "only a plan with a pace is played"
    weights = pace.weight or pace.backward  # of which there are no actions then
    costs: dict[str, dict[Kind, int]] = {
        peer: {"forward": forward, "backward": backward, "weight": weight}
        for peer, forward, backward, weight in zip(plan.peers, pace.forward, pace.backward, weights, strict=True)
    }
    transfer: dict[tuple[str, str], tuple[int, int]] = {}
    for number, (here, there) in enumerate(plan.pairs):
        transfer[here, there] = pace.ahead[number], pace.ahead_delay[number]
        transfer[there, here] = pace.back[number], pace.back_delay[number]
    stage_of = {peer: stage for stage in range(len(plan.stages)) for peer in plan.replicas(stage)}

    def beside(peer: str, action: Action, towards: int) -> str | None:
        """Whom an action's output goes to (1), or its input comes from (-1); None: nobody else."""
        if action.kind == "weight":
            return None
        route, ahead = plan.routes[action.micro_batch], action.kind == "forward"
        stage = stage_of[peer] + (towards if ahead else -towards)
        return route[stage] if 0 <= stage < len(route) else None

    place, free = dict.fromkeys(plan.peers, 0), dict.fromkeys(plan.peers, 0)
    link_free = dict.fromkeys(transfer, 0)
    arrival: dict[tuple[str, Action], int] = {}
    moving = list(plan.peers)
    while moving:
        peer = moving.pop()
        order = orders[peer]
        while place[peer] < len(order):
            action = order[place[peer]]
            came = 0 if beside(peer, action, -1) is None else arrival.get((peer, action))
            if came is None:
                break
            place[peer] += 1
            free[peer] = max(free[peer], came) + costs[peer][action.kind]
            if (receiver := beside(peer, action, 1)) is not None:
                # One peer alone sends over each link, and in its order: so what comes first is known.
                link = peer, receiver
                takes, delay = transfer[link]
                link_free[link] = max(link_free[link], free[peer]) + takes
                arrival[receiver, action] = link_free[link] + delay
                moving.append(receiver)
    assert all(place[peer] == len(orders[peer]) for peer in plan.peers), "they wait for each other"
    return max(free.values())
