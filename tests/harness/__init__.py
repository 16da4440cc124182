"""Swarms of real processes on this machine, for the tests and for the benchmarks.

- `daemon`: one process, which may be started several times (`Daemon`)
- `jobs`: the little jobs that they train (`Size`, `TINY`, `SMALL`)
- `swarm`: a coordinator, nodes and whatever else runs in a folder of their own (`Swarm`); the same job alone (`solo`)
- `tools`: what a machine may lack (`needs`)
"""
