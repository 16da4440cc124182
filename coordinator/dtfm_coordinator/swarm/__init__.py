"""State of the swarm as a coordinator knows it: what it hears, and what it writes down.

- `announcer`: what a coordinator says of itself: what it does, and what it has on disk
- `checkpoints`: checkpoints as the stages hand them in: a file from each stage, a digest from each replica, then one
  manifest
- `event_log`: what happened to a run: a line for each plan that began, in `history.jsonl`
- `message_handlers`: what a coordinator does with what it hears
- `metrics_recorder`: the recorder of metrics: writes down each step once, as the peers that train report it
- `profile_lookup`: looking for the profiles of peers that are there: the DHT is read while there is something to find
  in it
- `swarm_state`: the swarm as a coordinator knows it; whoever waits for something in it is woken when it changes
"""
