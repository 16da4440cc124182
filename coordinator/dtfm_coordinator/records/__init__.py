"""What a run leaves on the coordinator's disk.

- `checkpoint_collector`: checkpoints as the stages hand them in: a file from each stage, a digest from each replica,
  then one manifest
- `event_log`: event log of a run: a line for each plan that began, in `history.jsonl`
- `metrics_recorder`: recorder of metrics: writes down each step once, as the peers that train report it
"""
