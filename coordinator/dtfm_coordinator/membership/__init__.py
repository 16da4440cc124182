"""Members of the swarm: who is there, how they are connected, and who has become slow.

- `change_signal`: waiting until something that was heard makes a condition true
- `known_peers`: where peers say they are reached: by them a coordinator that comes back enters the network that it has
  left
- `link_degradation`: which links should be measured anew: training finds them slower than they were, or they were slow
  a while ago (pure)
- `link_table`: which links are known, which are yet to be measured, and the view that follows (pure)
- `members`: who is in the swarm, as far as presence, reports and DHT records tell (pure)
- `peer_limits`: what peers can send and receive in all, and who measures that next (pure)
- `probe_requests`: which measurements peers were asked for, and which of their results are answers (pure)
- `probe_rounds`: rounds in which pairs of peers measure their links, so that no probe disturbs another (pure)
- `stragglers`: which peers have become slow since their plan began, beside the others (pure)
- `tcp_check`: whether something takes connections at a peer's addresses
"""
