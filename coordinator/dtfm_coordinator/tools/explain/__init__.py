"""`dtfm-coordinator explain`: where a plan's step goes, for people who place models on networks.

- `command`: reads the files, asks for what follows from them, says it and draws it
- `critical_path`: the critical path of a simulated step: what its end waited for, span by span back to its beginning
- `figure`: the figure of a plan: on the left the network, on the right the step over time, or the paper's cost
- `idle_peers`: what an idle peer would bring: the step with it as one more replica of each stage, exactly simulated
- `network_chart`: the network as a drawing: nodes, links by their speed, and the plan's pipelines over them
- `next_node`: what the next node would bring: the same search on the view, and on the view with one more node like the
  median
- `node_positions`: where nodes stand in a drawing: near ones near, by classical multidimensional scaling, or in a
  circle by region
- `paper_chart`: the paper's cost of a plan as bars: each stage's all-reduce, and each boundary forward and backward
- `paper_findings`: the paper's communication cost of a plan (arXiv 2206.01288, section 3), stage by stage and boundary
  by boundary
- `paper_report`: the paper's cost of a plan as tables and lines for people
- `schedule_chart`: a simulated step over time: a lane for each peer, what it computes, and under it what it sends
- `step_findings`: a simulated step, peer by peer, stage by stage and link by link: from plan, view and timeline to
  plain values
- `step_report`: the findings about a simulated step as tables and lines for people
"""
