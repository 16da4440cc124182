"""The coordinator: observes the swarm, plans, and keeps checkpoints; no tensor passes through it during training.

- `allocator/`: the allocator: pure functions from a view of the swarm to a plan
- `lead/`: decisions of the coordinator that leads: when to measure, which plan comes next, and when another is better
- `membership/`: members of the swarm: who is there, how they are connected, and who has become slow
- `plan_change/`: change of plans: how one plan follows another, and from which state training goes on
- `serve/`: service of a coordinator: its planes, its broker, and who takes over when it is gone
- `swarm/`: state of the swarm as a coordinator knows it: what it hears, and what it writes down
- `tools/`: tools that an owner runs on saved views, plans and state directories
- `main`: `dtfm-coordinator`: the owner's command line
"""
