"""Identities: a peer's keys, signed envelopes, and credentials that say who is a member of a swarm.

- `admission`: admission: whom a peer of the swarm lets in, by credentials that coordinators signed, bans, and the plan
  in force
- `ban`: a ban: a coordinator's signed word that a peer, or all who entered with a token, are members no more
- `ban_list`: list of bans as one peer knows them, with the rulings that say which of them hold
- `ban_ruling`: a ban ruling: a coordinator's signed word that a ban holds no more, or holds again; the latest one
  counts
- `coordinators`: the coordinators of a swarm, as one peer knows them: those of its invite, and who has taken their
  places
- `credential`: a member's credential: an X.509 certificate of its key, signed by a coordinator of the swarm
- `enrolment`: enrolment: what a newcomer and a coordinator say to each other until the newcomer has a credential
- `entry_token`: the entry token in an invite: the right to enter a swarm, signed by a coordinator; whoever has the
  text may use it
- `envelope`: the signed envelope in which every control message and DHT record travels
- `freshness`: whether a message is newer than what its sender has said before, so that a replay tells nothing (pure)
- `invite`: all that a volunteer needs to find a swarm and to trust its coordinator, as one line of text
- `invite_source`: the source of an invite's text: a file, standard input, a prompt, or the command line
- `key_succession`: a succession: a coordinator's signed word that another key has taken the place of its own
- `keys`: a peer's identity: an Ed25519 key in the format that libp2p reads, whose peer id carries the public key
  itself
- `message_counter`: counter of the messages that one identity has signed: it grows with each, over restarts too
- `signer`: the signer of a peer's words in one swarm
- `standby_card`: the card with which a second coordinator introduces itself to the owner of a swarm, as one line of
  text
"""
