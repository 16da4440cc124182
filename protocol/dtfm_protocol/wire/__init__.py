"""The wire between peers: streams, frames, and tensors as bytes.

- `codec_sizes`: the names of wire codecs, and the bytes of coded tensors
- `codecs`: wire codecs, which turn a tensor into bytes between two peers, and back
- `frames`: the frames of a training stream: a fixed header, then the payload that the header announces
- `stream`: the data plane's interface: ordered byte streams between peers that know each other by peer id
"""
