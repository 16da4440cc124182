"""Who is in the swarm, where they are reached, and who has become slow.

- `accusations`: accusations of peers by others, and what the next plans make of them (pure)
- `change_signal`: signal by which tasks wait until something that was heard makes a condition true
- `divergence`: divergence of the training as peers report it, and whether their words are enough to end the run (pure)
- `known_peers`: addresses at which peers say they are reached: by them a coordinator that comes back enters the network
  again
- `ledger_file`: file of the membership ledger: one JSON object a line, written by the running coordinator and by its
  owner's commands beside it, each line at once
- `members`: members of the swarm, as far as presence, reports and DHT records tell (pure)
- `membership_ledger`: ledger of the swarm's membership: which invites were made and used, who has entered, who is
  banned (pure)
- `peer_limits`: what peers can send and receive in all, and who measures that next (pure)
- `probe_rounds`: rounds in which pairs of peers measure their links, so that no probe disturbs another (pure)
- `reachable_addresses`: addresses of peers at which something takes connections now
- `state_disputes`: disputes of replicas over the state that they have led to, and what becomes of their plan (pure)
- `stragglers`: peers that have become slow since their plan began, beside the others (pure)
"""
