"""Decisions of the coordinator that leads: when to measure, which plan comes next, and when another is better.

- `change_cost`: cost of a change of plan: the seconds for which everybody stands still, as those before it have shown
  (pure)
- `comparison`: comparison of the plan in force with a better one, while training goes on
- `controller`: controller of a job, one thing after the other: wait, measure, plan, watch, and again when a plan breaks
- `job_amender`: amender of the job: takes the owner's wishes for other values into the next plan
- `lead_context`: context in which a coordinator leads: its job, folder and planes
- `link_measuring`: measuring of links before plans are made: asks nodes for rounds of measurements, and waits for what
  they find
- `measured_plans`: making of plans on estimates: the links of each are measured, and where they are others than was
  thought it is made anew
- `moving_ahead`: moving of state ahead of a better plan, while the one in force is trained on
- `new_layout`: making of a new layout: who is there, how they are connected, and the best layout for them
- `next_plan`: making of the next plan: a layout, and where it goes on from
- `plan_watch`: watch over the plan in force: what would make another plan better, or end this one
- `planner`: planner of a job: from a view of the swarm to the plan that is published, the owner's forced layout or the
  allocator's
- `rehearsal`: rehearsal of a first plan: one that was made, and its links measured, while the last nodes were waited
  for (pure)
- `spare_measuring`: measuring, while training goes well, of the links that would change the plan most
- `standstill`: standstill of a run at the end of a step, as its owner wishes: nodes do nothing, and the state is kept
- `standstill_words`: what is said of a run that stands still, to its owner and to all (pure)
- `status_file`: writer of `status.json`, which `dtfm-coordinator status` reads
"""
