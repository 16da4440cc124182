"""The protocol: all that both sides of a swarm say to each other, and agree on.

- `checkpoint/`: the training state on disk and between peers: a folder a step, a safetensors file a stage, hashes of
  all
- `control/`: messages for plans, presence and reports, and MQTT that carries them
- `data/`: a job's data, from the owner's text to the micro-batches of a step
- `discovery/`: who is here: signed records that expire, on a distributed hash table
- `identity/`: a peer's keys, signed envelopes, and the invite that says whom to trust
- `job/`: what is to be trained, and what each step of it came to
- `model/`: the model and its stages: any decoder-only model of `transformers`, cut where a plan says
- `plan/`: which peer computes what, in which order, and under which plans a peer may act
- `process/`: a program's command line, state directory, logs, child processes, and traces
- `transport/`: transports of bytes from peer to peer: libp2p, TLS, relays, and holes through routers
- `view/`: what is known of a swarm's devices and links, on which plans are made
- `wire/`: streams, frames, and tensors as bytes between peers
- `bounds`: bounds of what others may write: one vocabulary of types for the fields of messages, records and files
- `errors`: the two errors of the product: the user's to mend, and something from the network that is refused
- `open_planes`: the stack of planes on which peers meet: libp2p below, direct streams beside it, the DHT on its daemon
- `schema`: the bases of every message and file: frozen, with one-line errors; only some let unknown keys pass
- `validation_words`: plain words for what pydantic says of a value that does not fit, in files, messages and options
  alike
"""

import os

os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")  # its warnings are for its own developers; ours name the cause
