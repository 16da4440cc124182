"""The volunteer's program: one daemon that joins a swarm and trains for it, and commands beside it.

- `commands/`: commands that a volunteer runs beside the daemon
- `control/`: messages between this node and the coordinators: what they say to it, and what it says of itself
- `doctor/`: `dtfm-node doctor`: finds what would keep a machine from taking part before it joins, each fault with one
  thing to do
- `engine/`: the training engine of one peer: everything between a plan and a committed step
- `links/`: links to other peers: measured, published, and shared among what is sent
- `runner/`: following of plans: which plan this node works under, and the work (tasklets) that the plan gives it
- `state/`: states of the model that this node holds: written to disk, given to others, and restored
- `daemon`: one member of a swarm: joins by invite, says what it can do, serves the tasklets it is given, says goodbye
- `main`: `dtfm-node`: the volunteer's command line
"""
