"""`dtfm-node doctor`: finds what would keep a machine from taking part before it joins, each fault with one thing to
do.

- `checks/`: checks of the doctor, one file a subject; in each, `look` gathers plain data and `judge` makes findings of
  it
- `closed_ports`: closed ports of a coordinator, noticed while a node waits to get in
- `command`: `dtfm-node doctor`: looks at everything, shows progress meanwhile, and prints what was found
- `doctor_options`: options of `dtfm-node join` that decide what the doctor looks at
- `examine`: examination of everything: runs all looks side by side, each within its time, and has what they saw judged
- `findings`: findings of the doctor: a line of what was seen, and for what is not well one thing to do
- `job_needs`: needs of a job that every node must meet: worked out in a process of its own, as it takes seconds
- `outside_view`: what a libp2p peer tells about this machine: where it sees it, its clock, whether it connects back, or
  relays
- `report`: findings as text: grouped, a line each, and at the end the things to do
- `separate_process`: work in a process of its own: it may take long, or hang in a driver with Python's lock held, and
  must be endable
- `host_lookup`: look-ups of hosts: names, TCP connections to their addresses, who says no, which address leads where
"""
