"""Following of plans: which plan this node works under, and its tasklets, each one stage for a share of micro-batches.

- `commitments`: commitments of this node: what it has promised, and the plan that it took last; on its disk before
  anyone hears of it
- `follower`: follower of plans: decides which plan a node follows, what it promises, and when it may go (pure)
- `plan_worker`: work under a plan: connects to its other peers, loads the state that it resumes from, trains, keeps and
  reports
- `runner`: runner of plans until the job is done: hears what coordinators say, has the `Follower` decide, and does what
  it asks
- `token_source`: token shards that this peer reads: fetched by hash from other peers, or the coordinator, and kept on
  its disk
"""
