"""Machine code of both searches, made on two processors before tests that would each make it for themselves:
`python -m tests.harness.machine_code`. Where it is kept already, it is only loaded."""

import multiprocessing

from dtfm_coordinator.allocator.allocate import compile_now
from dtfm_coordinator.allocator.paper.evolutionary_search import warm_up

if __name__ == "__main__":
    paper = multiprocessing.get_context("fork").Process(target=warm_up)
    paper.start()
    compile_now()
    paper.join()
