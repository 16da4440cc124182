"""`dtfm-node doctor`: finds what would keep a machine from taking part before it joins, each fault with one thing to
do.

- `checks/`: what is looked at, one file a subject; in each, `look` gathers plain data and `judge` makes findings of it
- `command`: `dtfm-node doctor`: looks, shows progress meanwhile, and says what was found
- `doctor_options`: what the person would join with
- `examine`: runs all looks side by side, each within its time, and has what they saw judged
- `findings`: what a check has found: a line of what was seen, and for what is not well one thing to do
- `job_needs`: what a job asks of any node: worked out in a process of its own, as it takes seconds
- `outside_view`: what a libp2p peer tells about this machine: where it sees it, its clock, whether it connects back, or
  relays
- `report`: findings as text: grouped, a line each, and at the end what there is to do
- `separate_process`: work in a process of its own: it may take long, or hang in a driver with Python's lock held, and
  must be endable
- `tcp_look`: names, TCP connections and addresses, looked at: who says no, who is silent, and which address leads where
"""
