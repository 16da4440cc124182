"""Forecast of a job's hours on made-up machines, by the allocator and its simulated step."""

from collections.abc import Callable
from dataclasses import dataclass

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.errors import UserError
from dtfm_protocol.view.view import View


@dataclass(frozen=True)
class Forecast:
    """Forecast for so many machines. Evaluations, checkpoints and changes of plan are left out."""

    machines: int
    stages: int = 0
    used: int = 0
    """Number of machines to which the plan gives work."""
    step_seconds: float = 0.0
    hours: float = 0.0
    """Hours of the whole job."""
    why_none: str = ""
    """Reason why there is no plan; "": there is one."""


def forecasts(
    work: Workload,
    steps: int,
    machines: tuple[int, ...],
    view: Callable[[int], View],
    evaluations: int | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> tuple[Forecast, ...]:
    """Return a forecast for each number of machines, in their order.

    Args:
        steps: number of steps of the job.
        view: makes the network of so many machines.
        evaluations: number of layouts that each search may look at; None: searches take seconds, as when training.
        say: told that the search is being compiled, if it is.
    """
    return tuple(_forecast(work, steps, view(count), evaluations, say) for count in machines)


def _forecast(
    work: Workload, steps: int, view: View, evaluations: int | None, say: Callable[[str], object]
) -> Forecast:
    machines = len(view.nodes)
    try:
        plan = allocate(view, work, evaluations=evaluations, say=say)
    except NotEnoughNodes as error:
        return Forecast(machines, why_none=f"[plan] asks for {machines + error.missing} machines at least")
    except UserError as error:
        return Forecast(machines, why_none=str(error))
    assert plan.cost is not None
    seconds = plan.cost.total
    return Forecast(machines, len(plan.stages), len(plan.peers), seconds, steps * seconds / 3600)
