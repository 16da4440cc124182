"""`dtfm-coordinator explain`: where a plan's step goes, for people who place models on networks.

- `command`: reads the files, asks what follows, says it
- `critical`: the critical path of a simulated step, and its bottleneck (pure)
- `findings`: a simulated step peer by peer and link by link (pure)
- `idle`: what an idle peer would bring as one more replica; `growth`: what the next node would bring
- `paper`: the paper's cost of a plan stage by stage, boundary by boundary (pure)
- `report`: findings as tables; `paper_report`: the paper's cost likewise; `wording`: how figures are written
- `figure`: findings as a picture: `placing` puts nodes on a plane, `network_chart` draws links and pipelines on it,
  `schedule_chart` the step over time, `paper_chart` the paper's cost
"""
