"""Checks of the doctor, one file a subject; in each, `look` gathers plain data and `judge` makes findings of it.

- `broker`: the way to the coordinator: its broker's name, TCP, TLS and password, and who is there
- `clock`: how far this machine's clock is off: records in the DHT expire by it
- `first_peers`: the way to the other peers: TCP to the invite's doors, the libp2p peers behind them, and the DHT that
  they keep
- `invite_text`: whether the text is an invite
- `ipv6`: whether IPv6 works where it is offered: an address that a name has and that does not answer costs time
- `leftovers`: other nodes on this machine, and what is left of killed ones
- `ports`: whether the ports that a node is to listen at are free
- `reachability`: whether others can reach this machine: the addresses it has, those that others see, what a NAT does
  with them
- `resources`: whether memory, disk and open files are enough for the job
- `versions`: whether Python and the libraries are those that dtfm asks for
"""
