"""The lab: what researchers and benchmarks need, and no swarm does.

- `bounds/`: what no placement can undercut: by it a search's result is judged
- `compare/`: the command `dtfm-coordinator compare`: each algorithm's plans for one view, over several seeds
- `emulation/`: an emulated network on one machine: hosts with delays and rates between them, for real processes and
  real bytes
- `networks/`: networks to plan on without having them: views of as many nodes as one asks for
"""
