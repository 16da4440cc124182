"""The wire between peers: streams, frames, and tensors as bytes.

- `codecs`: how a tensor becomes bytes between two peers, and back (pure)
- `frames`: what travels on a training stream
- `protobuf`: protobuf's wire format, of the few messages of libp2p's own protocols that are spoken here
- `stream`: the data plane's interface: ordered byte streams between peers that know each other by peer id
- `tensor_sizes`: what coded tensors weigh
"""
