"""Tools that an owner runs on saved views, plans and state directories.

- `explain/`: `dtfm-coordinator explain`: where a plan's step goes, for people who place models on networks
- `trace/`: `dtfm-coordinator trace`: one timeline of what all nodes did, from the file that each of them wrote
- `export`: the newest checkpoint as a folder that `transformers` loads
- `generate`: a taste of the model: text that the newest checkpoint writes
- `local_swarm`: a whole swarm on this machine: a coordinator here, and N `dtfm-node join` processes that know only its
  invite
- `offline_plan`: the allocator on saved views: what `dtfm-coordinator plan` asks, and in which words it answers
- `status`: `dtfm-coordinator status`: what is going on in a state dir
- `wording`: how peers, seconds and sizes are written for people
"""
