"""`dtfm-coordinator explain`: where a plan's step goes, for people who place models on networks.

- `command`: command `explain`: reads the files, asks for what follows from them, prints it and draws it
- `critical_path`: critical path of a simulated step: what its end waited for, span by span back to its beginning
- `estimated_links`: line on those links of a plan that nobody measured, and on how far off their estimates may be
  (pure)
- `explained_plan`: plan as it is explained: with its own wire and schedule, the job's where it names none, or those
  that one asks for
- `figure`: figure of a plan: on the left the network, on the right the step over time, or the paper's cost
- `idle_peers`: idle peers, and what each would bring: the step with it as one more replica of each stage, exactly
  simulated
- `label_places`: places of labels beside points, where they cover neither points nor each other, as far as there is
  room (pure)
- `measured_report`: report of a measured step beside the simulated one, as lines and a table for people
- `network_chart`: drawing of the network: nodes, links by their speed, and the plan's pipelines over them
- `next_node`: gain by the next node: the same search on the view, and on the view with one more node like the median
- `node_positions`: positions of nodes in a drawing: near ones near, by classical multidimensional scaling, or in a
  circle by region
- `paper_chart`: chart of the paper's cost of a plan as bars: each stage's all-reduce, and each boundary forward and
  backward
- `paper_findings`: findings by the paper's communication cost of a plan (arXiv 2206.01288, section 3), by stage and
  boundary
- `paper_report`: report of the paper's cost of a plan, as tables and lines for people
- `schedule_chart`: chart of a step over time, simulated or measured: a lane for each peer, what it computes, and
  under it what it sends
- `single_changes`: single changes of a plan, and how long a step would be with each: why these peers stand where they
  stand
- `step_findings`: findings about a simulated step, by peer, stage and link: from plan, view and timeline to plain
  values
- `step_report`: report of the findings about a simulated step, as tables and lines for people
"""
