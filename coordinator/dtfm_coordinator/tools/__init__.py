"""Tools that an owner runs on saved views, plans and state directories.

- `check/`: `dtfm-coordinator check`: what a job file means, before anything is tokenized or served
- `explain/`: `dtfm-coordinator explain`: where a plan's step goes, for people who place models on networks
- `lifetimes/`: `dtfm-coordinator lifetimes`: a job on machines that come and go, in virtual time, with the
  coordinator's decisions
- `report/`: `dtfm-coordinator report`: a run in one file, to read, keep and hand on
- `trace/`: `dtfm-coordinator trace`: one timeline of what all nodes did, from the file that each of them wrote
- `adapter_folder`: folder of a job's adapters as `peft` loads them, beside a model that is left as it was
- `checkpoint_list`: which checkpoints of a run there are, and which of them are kept for good
- `export`: a checkpoint as a folder that `transformers` loads, with its card
- `fork`: fork of a run: a job file that begins with the weights of one of its checkpoints
- `formatting`: formatting of peers, seconds and counts for people
- `generate`: text that the model of the newest checkpoint writes after a prompt
- `local_swarm`: a whole swarm on this machine: a coordinator here, and N `dtfm-node join` processes that know only its
  invite
- `model_card`: card of a trained model: who has trained it and how
- `offline_plan`: planning on saved views: what `dtfm-coordinator plan` asks the allocator, and in which words it
  answers
- `status`: `dtfm-coordinator status`: shows the status of a state dir's coordinator
- `view_notes`: notes on a view that was written by hand: figures that are most likely of another unit, or that limits
  cut (pure)
"""
