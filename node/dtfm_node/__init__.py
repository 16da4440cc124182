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
- `keep`: state from and to checkpoints
- `display`: what the person at the machine sees
"""
