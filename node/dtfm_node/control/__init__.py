"""Messages between this node and the coordinators: what they say to it, and what it says of itself.

- `enrolment_client`: client of the coordinators' entrances: this node's credential, on the disk between runs, made anew
  when it is due
- `contribution_keeper`: keeper of the signed record of what this node has contributed
- `contribution_words`: words for what a node has contributed to a run
- `desk_client`: client of the desk at a coordinator's entrance: asks for what a member may have there
- `display`: output for the person at the machine: a live line in a terminal, plain lines in a pipe, a status file for
  other programs
- `inbox`: messages of coordinators: the job, plans, which of them is in force, the swarm's phase, whose links to
  measure
- `job_words`: words for what a swarm trains, for the person who lends it a machine (pure)
- `latest_plan`: plain values that decide which plan a node follows: the newest call and the newest plan of those that
  coordinators have sent
- `plain_words`: plain words for the person at the machine: what their node does, how far the training is (pure)
- `reporter`: report of this node to the coordinator: its state, its progress, and the metrics rows that are not
  confirmed yet
- `swarm_phase`: the swarm's phase as a node has heard it, and whether it ends the swarm for this node (pure)
- `wake_watch`: watch for what makes connections lead nowhere: this machine has slept, or has other addresses
"""
