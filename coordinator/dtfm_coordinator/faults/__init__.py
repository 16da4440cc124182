"""What peers do wrong, or cannot do: whom others accuse, who differs from its replicas, who has become slow.

- `accusations`: accusations of peers by others, and what the next plans make of them (pure)
- `divergence`: divergence of the training as peers report it, and whether their words are enough to end the run (pure)
- `owed_shares`: shares of checkpoints that peers of the plan in force owe the coordinator, and whom the next plans do
  without (pure)
- `state_disputes`: disputes of replicas over the state that they have led to, and what becomes of their plan (pure)
- `stragglers`: peers that have become slow since their plan began, beside the others (pure)
- `unlike_commits`: commits that one arbiter has signed, and whether they are one story (pure)
"""
