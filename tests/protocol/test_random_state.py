"""The state of the global random generator while several threads build models."""

import subprocess
import sys

import pytest
import torch

from dtfm_protocol.model.random_state import random_state_kept

THREADS = """
import gc, sys, threading, torch
from dtfm_protocol.model.random_state import random_state_kept

class Garbage:
    def __init__(self):
        self.own, self.tensor = self, torch.zeros(1, requires_grad=True)

def work():
    for _ in range(1000):
        Garbage()
        with random_state_kept():
            pass

gc.set_threshold(1)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_state_is_afterwards_what_it_was_before() -> None:
    before = torch.get_rng_state()
    with random_state_kept():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.process
def test_threads_that_keep_it_at_a_time_never_wait_for_each_other_for_ever() -> None:
    # Within torch's own block, and without the lock, this stops at once, and for good.
    subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=120)
