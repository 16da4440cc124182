"""Change of plans: how one plan follows another, and from which state training goes on.

- `announcements`: what peers are told of plans: the plan that is offered, and the epoch, one after the other as it was
  decided
- `commit_signatures`: check of commits' signatures, each once: peers show the same ones with every report
- `ended_processes`: liveness by TCP: a peer's process has ended if connections are refused at the very ports at which
  it took them
- `judged_holdings`: judgement of what peers say that they hold: a holding counts only where the plans that coordinators
  signed say that its peer may have it, and where the arbiter's commit, or a later plan, says that its state was final
  (pure)
- `peer_stands`: promises of peers, as plain values for `PlanChange`
- `plan_change`: change of plans, as one coordinator decides it: a call that ends the old plan, promises of peers, the
  new plan, its taking, and its coming into force (pure)
- `plan_change_driver`: from one plan to the next on disk, wire and clock: carries out what `PlanChange` decides
- `plan_change_events`: events and actions of `PlanChange` as plain values: what happens while one plan follows another,
  and what is to be done
- `plan_electors`: electors of a plan: who decides on what follows it, and when enough of them have (pure)
- `plan_record`: record of changes of plan in `epoch.json`: what a coordinator must not forget of them, whoever leads
- `refused_claims`: account of what peers said that they hold and do not, or may not: counted, and said once a peer and
  reason
- `resume_point`: state that a new plan goes on from, and who gives it, decided from what peers hold (pure)
"""
