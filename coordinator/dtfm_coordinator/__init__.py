"""The coordinator: observes the swarm, plans, and keeps checkpoints.

- `allocator/`: the allocator: from a view of the swarm to a plan
- `commands/`: the commands of `dtfm-coordinator`: what each takes, and which late import it runs
- `faults/`: what peers do wrong or cannot do: whom others accuse, who differs, who has become slow
- `leader/`: what a coordinator decides: when to measure, which plan comes next, and when another is better
- `links/`: the links between peers: which are known, asked for, or to be looked at again
- `membership/`: who is in the swarm, and where they are reached
- `owner/`: what the owner asks of a run while it goes on, on disk and summed up
- `plan_change/`: how one plan follows another, and from which state training goes on
- `records/`: what a run leaves on the coordinator's disk
- `serve/`: a running coordinator: its planes, its broker, and who takes over when it is gone
- `swarm/`: the swarm as a coordinator knows it: what it hears, and what it says of itself
- `tools/`: what an owner runs on saved views, plans and state directories
- `main`: `dtfm-coordinator`: the owner's command line

Activations and gradients go from peer to peer; only where two peers cannot connect may they be relayed by a
coordinator. The files of a checkpoint come to it.
"""
