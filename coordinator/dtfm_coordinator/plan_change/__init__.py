"""Change of plans: how one plan follows another, and from which state training goes on.

- `changeover`: from one plan to the next on disk, wire and clock: carries out what `PlanChange` decides
- `peer_stands`: where peers stand, as plain values for `PlanChange`
- `plan_change`: how one plan follows another, as one coordinator decides it: a call that ends the old one, promises,
  the new plan, its taking, and its coming into force (pure)
- `plan_change_events`: what happens while one plan follows another, and what is to be done: the words of `PlanChange`,
  as plain values
- `plan_record`: `epoch.json`: what a coordinator must not forget of changes of plan, whoever leads
- `recovery`: from which state a new plan goes on, and who gives it: decided from where peers stand (pure)
- `tcp_liveness`: whether a peer's process has ended: something refuses connections at the very ports at which it took
  them
"""
