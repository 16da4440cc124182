"""State of the swarm as a coordinator knows it: what it hears, and what it writes down.

- `announcer`: announcer of what a coordinator does, and of what it has on disk
- `checkpoints`: checkpoints as the stages hand them in: a file from each stage, a digest from each replica, then one
  manifest
- `event_log`: event log of a run: a line for each plan that began, in `history.jsonl`
- `message_handlers`: handlers of what a coordinator hears
- `metrics_recorder`: recorder of metrics: writes down each step once, as the peers that train report it
- `profile_lookup`: lookup of the profiles of peers that are there: the DHT is read while there is something to find in
  it
- `swarm_state`: state of the swarm as a coordinator knows it; tasks that wait for something in it are woken when it
  changes
"""
