"""Decisions of the coordinator that leads: when to measure, which plan comes next, and when another is better.

- `comparison`: looking for a better plan while the one in force goes on
- `controller`: what a coordinator decides, one thing after the other: wait, measure, plan, watch, and again when a plan
  breaks
- `lead_context`: what a coordinator leads with
- `new_layout`: who is there, how they are connected, and the best layout for them
- `next_plan`: the plan that follows: a layout, and where it goes on from
- `plan_watch`: what would make another plan better than the one in force, or end it
- `planner`: from a view to the plan that is published: the owner's forced layout, or the allocator's
- `status_file`: the writer of `status.json`, which `dtfm-coordinator status` reads
"""
