"""What a run leaves on the coordinator's disk.

- `checkpoint_collector`: checkpoints as the stages hand them in: a file from each stage, a vote from each replica, then
  one manifest
- `event_log`: event log of a run: a line for each plan that began, in `history.jsonl`
- `metrics_recorder`: recorder of metrics: writes down each step once, as the peers that train report it
- `state_vote_file`: file of the votes on states that a coordinator has heard, so that a restart forgets none
- `state_votes`: votes on states that a coordinator has heard, and what they certify
"""
