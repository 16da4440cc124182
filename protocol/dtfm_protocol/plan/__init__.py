"""Plans: which peer computes what, in which order, and under which plans a peer may act.

- `ballot`: votes on steps, and the commits that answer them
- `mark`: names of states of the model, and of parts of them
- `lineage`: the chain of plans that a plan descends from: which states of the model lie along it, who made them final,
  and which layers of them a peer may hold
- `peer_state`: the state of a peer: under which plans it may still act, and which states of the model it holds
- `plan`: which peer serves which stage of which micro-batch
- `played_orders`: the play of given orders of compute at a plan's pace: how long a step of them would take
- `played_pace`: the pace of a plan's step: the durations and delays by which its orders of compute are made
- `reduction_trees`: the trees along which holders of gradients sum them: a ring, two levels, and any other way
- `reductions`: the reductions of a step: who sums which gradients with whom, in which codec, and which part of them
  each sums
- `schedule`: pipeline schedules as data: the order in which each peer computes its share of a step
- `schedule_check`: the check that a schedule can run: everything once, nothing before what it needs, no circle of
  waiting, within memory
- `schedule_rules`: rules of the order of compute, on plain numbers: `schedule` plays a step by them, and so does the
  allocator's search
- `signed_commit`: signed votes and commits: who said what of a step, so that anybody can check it later
- `state_vote`: signed votes on states: the word of a replica on all tensors of its stage
- `summed_parts`: the parts of a bucket of gradients that its holders sum, sized to their links
- `voted_step`: proof that all peers of a plan have voted on a step: the signatures of their votes, without the votes
"""
