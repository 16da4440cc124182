"""The swarm as a coordinator knows it: what it hears, and what it says of itself.

- `announcer`: announcer of what a coordinator does, and of what it has on disk
- `message_handlers`: handlers of what a coordinator hears
- `overview/`: overview of a run for people: one plain value, which `status` and the owner's page both show
- `profile_lookup`: lookup of the profiles of peers that are there: the DHT is read while there is something to find in
  it
- `step_progress`: progress of training: the newest step that is applied, and for how long the one after it has been
  under way
- `swarm_state`: state of the swarm as a coordinator knows it; tasks that wait for something in it are woken when it
  changes
"""
