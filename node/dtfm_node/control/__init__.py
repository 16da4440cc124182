"""Messages between this node and the coordinators: what they say to it, and what it says of itself.

- `display`: what the person at the machine sees: a live line in a terminal, plain lines in a pipe, a status file for
  others
- `heard`: what decides about plans in what coordinators have said: the newest call and the newest plan, as plain values
- `inbox`: what coordinators have said: the job, plans, which of them is in force, the swarm's phase, whose links to
  measure
- `reporter`: what this node says of itself: its state, its progress, and the metrics rows that nobody has confirmed yet
"""
