"""Tests: a folder for each package, `swarm` for whole swarms of processes, `harness` for what tests share."""
