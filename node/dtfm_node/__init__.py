"""The volunteer's daemon.

- `main`: the command line, `dtfm-node`
- `daemon`: one member of a swarm, from invite to goodbye (`Daemon`)
- `bulletin`: what the coordinator has said; `journal`: what this node says; `listing`: what it publishes over the DHT
- `tasklets`: serves one plan after the other
- `solo`: the same job in one process, without a swarm
- `devices`, `measure`: which device, how fast, how much memory
- `optimizer`: AdamW and the clip, as swarm and `solo` have them
- `probe`: latency and throughput to other peers; `throughput`: which transfers tell it
- `engine/`: training under a plan
- `uplink`: what is urgent goes first, and nothing over a link that is being measured
- `trace`: what this node did and when
- `tokens`: the token shards that this peer reads
- `keep`: says what of a state is kept, and hands it on (`Keeper`) from `snapshot_writer`, which writes it to this node's
  disk beside training, to `shadow_replication`, which gives copies to peers and takes theirs, and to
  `checkpoint_upload`, which hands in this node's share of a checkpoint
- `snapshots`: the states on this node's disk; `holdings`: all states that it has and gives; `fetch`: those of others;
  `loading`: brings a stage to the state that its plan begins with
- `display`: what the person at the machine sees
"""
