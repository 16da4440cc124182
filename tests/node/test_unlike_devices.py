"""Replicas on unlike devices: the update, the decoders, what is kept in int8, and the sum of
parts have the same bits on all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
THREADS = (1, 2)
pytestmark = [pytest.mark.process, pytest.mark.slow]


def digests(device: str = "cpu", capability: str | None = None) -> dict[int, dict[str, str]]:
    """What a process of its own finds whose torch takes the processor for one of `capability`, by number of threads."""
    surroundings = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    surroundings["OMP_WAIT_POLICY"] = "PASSIVE"  # two threads on a busy machine would spin for each other
    if capability is not None:
        surroundings |= {"ATEN_CPU_CAPABILITY": capability, "NUMBA_CPU_NAME": "generic"}
    command = [sys.executable, "-m", "tests.node.state_digests", device, *map(str, THREADS)]
    said = subprocess.run(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {threads: json.loads(line) for threads, line in zip(THREADS, said.splitlines(), strict=True)}


def test_an_old_and_a_new_processor_have_the_same_bits_with_any_threads() -> None:
    """`ATEN_CPU_CAPABILITY=default` is torch without AVX2, AVX-512, and their fused products and sums;
    so is numba's code for a generic processor."""
    new, old = digests(), digests(capability="default")
    assert new[2] == new[1]
    assert old == new


@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA device")
def test_a_gpu_has_the_same_bits_as_a_processor() -> None:
    assert digests("cuda")[1] == digests()[1]
