"""Commands of a volunteer: `leave` speaks to a running daemon, `solo` and `bench` need none.

- `bench`: `dtfm-node bench`: prints what this device would tell a swarm of its speed and memory
- `leave`: `dtfm-node leave`: asks the daemon of a state dir to drain, and waits until it has ended
- `solo`: solo training of a job in one process: the plain training loop that every swarm is compared with, useful by
  itself
"""
