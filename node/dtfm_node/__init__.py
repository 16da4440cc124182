"""The volunteer's daemon.

- `main`: the command line, `dtfm-node`
- `daemon`: one member of a swarm, from invite to goodbye (`Daemon`)
- `bulletin`: what the coordinator has said; `journal`: what this node says; `listing`: what it publishes over the DHT
- `heard`: what decides about plans in that; `follower`: which plan this node follows, what it promises, when it may go
- `runner`: does what the follower decides; `commitments`: the promise and the plan on its disk
- `plan_worker`: connects, loads, trains, keeps and reports under a plan
- `solo`: the same job in one process, without a swarm
- `devices`, `measure`: which device, how fast, how much memory
- `optimizer`: AdamW and the clip, as swarm and `solo` have them
- `probe`: latency and throughput to other peers; `throughput`: which transfers tell it
- `engine/`: training under a plan
- `uplink`: what is urgent goes first, and nothing over a link that is being measured
- `trace`: what this node did and when
- `tokens`: the token shards that this peer reads
- `keep`: says what of a state is kept, and hands it on (`Keeper`); `snapshot_writer` writes it to this node's disk,
  `shadow_replication` gives copies to peers and takes theirs, `checkpoint_upload` hands in a checkpoint's share
- `snapshots`: the states on this node's disk; `state_reading`: how one is read while it is trained
- `holdings`: all states that this node has, and gives; `fetch`: gets those of others; `loading`: brings a stage to the
  state that its plan begins with
- `display`: what the person at the machine sees
"""
