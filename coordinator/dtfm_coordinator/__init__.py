"""The coordinator: it looks, plans and keeps; no tensor passes through it during training.

- `main`: the command line, `dtfm-coordinator`
- `service`: a running coordinator: its planes and its invite (`Coordinator`); `endpoints`: its ports and addresses
- `conductor`: what it decides, from waiting for nodes to the last step (`Conductor`); `planning`: from view to plan
- `members`: who is in the swarm, and what of it the allocator sees (pure)
- `linkmap`: which links are known, and who measures next; `probe_requests`: which results are answers (pure)
- `allocator/`: from a view to a plan (pure); `requirements`: what a job's model asks of peers
- `networks/`: views that are made up: the paper's networks, and others
- `offline`, `compare`, `explain/`: the allocator on saved views: a plan, algorithms side by side, where the time goes
- `trace/`: the nodes' timelines as one
- `archive`: checkpoints as the stages hand them in
- `broker`: the embedded MQTT broker; `compat_amqtt`: what its library needs mended
- `swarm`: a whole swarm of processes on this machine
- `export`, `generate`, `status`: what is done with a state dir afterwards
"""
