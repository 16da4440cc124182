"""Machine code of both searches and of the bound, made on two processors before tests that would each make it for
themselves: `python -m tests.harness.machine_code`. Where it is kept already, it is only loaded."""

import multiprocessing

from dtfm_coordinator.allocator.allocate import compile_now
from dtfm_coordinator.allocator.paper.evolutionary_search import warm_up
from dtfm_lab.bounds.step_bound import least_bound
from tests.coordinator.swarms import drawn_view, workload


def others() -> None:
    """Make that of the paper's search and of the bound: together they are less than the search for plans."""
    warm_up()
    least_bound(drawn_view(3, 0), workload(4))


if __name__ == "__main__":
    beside = multiprocessing.get_context("fork").Process(target=others)
    beside.start()
    compile_now()
    beside.join()
    raise SystemExit(beside.exitcode)
