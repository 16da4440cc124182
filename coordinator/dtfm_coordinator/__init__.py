"""The coordinator: it looks, plans and keeps; no tensor passes through it during training.

- `main`: the command line, `dtfm-coordinator`
- `service`: a running coordinator: its planes and its invite (`Coordinator`); `endpoints`: its ports and addresses
- `conductor`: leads a job from waiting for nodes to the last step (`Conductor`); `planning`: from view to plan
- `plan_change`: how one plan follows another (`PlanChange`, pure); `plan_change_events`: what happens and what is to be
  done meanwhile; `changeover` carries that out (`Changeover`); `plan_record`: what of it lies on the disk;
  `peer_stands`, `tcp_liveness`: what peers say and what their ports tell; `next_plan`: where a new plan goes on from
- `plan_watch`: what would make another plan better; `comparison`: looks whether one is
- `swarm_state`: the swarm as the coordinator knows it (`SwarmState`); `change_signal`: waiting for it to change
- `message_handlers`: notes what is heard; `announcer`: says what is done; `metrics_recorder`, `status_file`: write it
- `lead_context`: what a coordinator leads with; `profile_lookup`: reads what peers publish of themselves
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
