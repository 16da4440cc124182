"""Identities: a peer's keys, signed envelopes, and the invite that says whom to trust.

- `envelope`: the signed envelope in which every control message and DHT record travels
- `freshness`: whether a message is newer than what its sender has said before, so that a replay tells nothing (pure)
- `invite`: all that a volunteer needs to find a swarm and to trust its coordinator, as one line of text
- `invite_source`: the source of an invite's text: a file, standard input, a prompt, or the command line
- `keys`: a peer's identity: an Ed25519 key in the format that libp2p reads, whose peer id carries the public key
  itself
- `message_counter`: counter of the messages that one identity has signed: it grows with each, over restarts too
- `standby_card`: the card with which a second coordinator introduces itself to the owner of a swarm, as one line of
  text
"""
