"""Who is in the swarm, where they are reached, and who has become slow.

- `change_signal`: signal by which tasks wait until something that was heard makes a condition true
- `divergence`: divergence of the training as peers report it, and whether their words are enough to end the run (pure)
- `known_peers`: addresses at which peers say they are reached: by them a coordinator that comes back enters the network
  again
- `members`: members of the swarm, as far as presence, reports and DHT records tell (pure)
- `peer_limits`: what peers can send and receive in all, and who measures that next (pure)
- `probe_rounds`: rounds in which pairs of peers measure their links, so that no probe disturbs another (pure)
- `stragglers`: peers that have become slow since their plan began, beside the others (pure)
- `tcp_check`: check whether something takes connections at a peer's addresses
"""
