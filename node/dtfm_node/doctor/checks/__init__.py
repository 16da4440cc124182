"""Checks of the doctor, one file a subject; in each, `look` gathers plain data and `judge` makes findings of it.

- `broker`: check of the way to the coordinator: its broker's name, TCP, TLS and password, and who is connected there
- `clock_offset`: check of this machine's clock, by which records in the DHT expire
- `first_peers`: check of the way to the other peers: TCP to the doors (addresses in the invite at which the DHT can be
  entered), the libp2p peers behind them, and the DHT that they keep
- `invite_text`: check whether the text is an invite
- `ipv6`: check whether IPv6 works where it is offered: an IPv6 address of a name that does not answer costs time
- `leftovers`: check for other nodes on this machine, and for what killed ones have left
- `ports`: check whether the ports at which a node is to listen are free
- `reachability`: whether others can reach this machine: the addresses it has, those that others see, what a NAT does
  with them
- `resources`: check whether memory, disk and open files are enough for the job
- `versions`: check whether Python and the libraries are those that dtfm asks for
"""
