"""The volunteer's program: one daemon that joins a swarm and trains for it, and commands beside it.

- `commands/`: commands of a volunteer: `leave` speaks to a running daemon, `solo` and `bench` need none
- `control/`: what coordinators say to this node, and what it says of itself
- `devices/`: several devices of one machine: one `dtfm-node join` that runs a node on each of them
- `doctor/`: `dtfm-node doctor`: what goes wrong for ordinary people, found before they join, each with one thing to do
- `engine/`: the training engine of one peer: everything between a plan and a committed step
- `limits/`: limits of what the node may take of its machine, and when it may work at all
- `links/`: links to other peers: measured, published, and shared among what is sent
- `runner/`: following of plans: which plan this node works under, and the tasklets that the plan gives it
- `state/`: states of the model that this node holds: on disk, for others, and brought back
- `arrival`: arrival of a node at its swarm: its broker lets it in, a coordinator says what is trained, nobody else has
  its identity, and clocks are compared
- `daemon`: one member of a swarm: joins by invite, says what it can do, serves the tasklets it is given, says goodbye
- `main`: `dtfm-node`: the volunteer's command line
- `node_options`: options of a node: what the person at the machine decides
"""
