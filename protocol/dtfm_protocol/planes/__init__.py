"""The three planes on which peers meet, each behind a small interface.

- `data`: byte streams from peer to peer (`DataPlane`, `Stream`), and the messages that open them
- `libp2p`: the data plane's engine, one libp2p daemon a process (`p2pd`); `addresses`: multiaddresses
- `protobuf`: the wire format of libp2p's own protocols; `knock`: whether something takes connections at an address
- `relay`: carries the streams of members that nobody can connect to (`Relay`)
- `direct`: beside it, TLS from peer to peer where they can reach each other (`DirectDataPlane`)
- `route`: what is known of the ways to one peer, and which one is tried next (pure); `bounds`: how long, how many
- `connections`, `direct_stream`, `certificates`, `sockets`: how such streams are opened and taken, one of them, whose
  keys are trusted, and TCP below it
- `punch`, `hole`: connections that two peers open from both sides, where routers let nobody in (`Puncher`)
- `discovery`: who is here (`Discovery`): signed records that expire, on hivemind's DHT
- `stack`: data plane and discovery of one peer, opened and closed together (`open_planes`)
- `control`: plans, presence, reports over MQTT (`ControlPlane`)
- `memory`, `memory_control`: in-memory twins of all three, for tests; `memory_links`: what goes wrong between them
"""
