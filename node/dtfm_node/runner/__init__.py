"""Following of plans: which plan this node works under, and its tasklets, each one stage for a share of micro-batches.

- `ahead_fetch`: fetch, ahead of a plan that is to come, of what this node lacks for it, while the plan in force is
  trained on
- `first_given`: file from whichever of several peers gives it first
- `first_offer`: first of several peers that offers what all were asked for, one a moment after the other
- `follower`: follower of plans: decides which plan a node follows, what it promises, and when it may pause or go (pure)
- `plan_check`: the check of a plan against what this node has offered, before memory is taken for it
- `plan_worker`: work under a plan: connects to its other peers, loads the state that it resumes from, trains, keeps and
  reports
- `promise_store`: store of this node's promises: what it has promised, and the plan that it took last; on disk before
  it is said
- `plan_loop`: loop over plans until the job is done: hears coordinators, has the `Follower` decide, and does what it
  asks
- `token_source`: token shards that this peer reads: fetched by hash from other peers, or the coordinator, and kept on
  its disk
"""
