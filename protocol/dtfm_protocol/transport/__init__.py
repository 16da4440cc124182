"""Transports of bytes from peer to peer: libp2p, TLS, relays, and holes through routers.

- `certificates`: TLS between members: the contexts with which a peer shows its credential, and checks those of others
- `circuit_relay`: members that nobody can connect to are reached through one that everybody can
- `client_hello`: the first message of a TLS client, told from rubbish before anything is computed for it
- `connect_attempt`: attempt to connect: whether something takes TCP connections at an address
- `daemon_control`: what is asked of the libp2p daemon beside streams: who is connected, and to end a connection
- `dial_rule`: the rule of which addresses that others announce are dialled: none inside one's own network, unless the
  swarm itself lies there
- `dialling`: dialling of addresses that others announce: names are looked up before the rule is asked
- `direct_data_plane`: the data plane's short way: TLS 1.3 over TCP from peer to peer, where one can reach the other;
  libp2p for the rest
- `direct_limits`: the limits of a direct plane: how long it waits, and how much it takes on at a time
- `doorkeeper`: the doorkeeper of the libp2p daemon: who is connected and does not show that it is a member is
  disconnected
- `endpoint_exchange`: the exchange, over libp2p, in which two peers tell each other where to connect
- `front_door`: a front door: a TCP port where a stranger costs little until a TLS handshake with it begins
- `handshake_turns`: the turns of those who wait for a TLS handshake: only so many begin in a second, and members need
  not wait
- `hole_punching`: a stream to a peer that nobody can connect to, over a connection that both sides open at the same
  time
- `in_memory`: in-memory twins of the data plane and of discovery: the same interfaces without processes or sockets
- `in_memory_links`: in-memory links, and what goes wrong on them: what is sent arrives late, out of order, not yet, or
  never
- `incoming_streams`: streams that peers open: each is given to its handler, and what goes wrong with it goes no further
- `ip_addresses`: IP addresses: from where each can be reached, and which of them are this machine's
- `libp2p`: the data plane on libp2p, through the daemon that `libp2p_daemon` starts and ends
- `libp2p_admission`: the libp2p streams of one peer with members: those that it opens, and those that it takes once
  they are proven
- `libp2p_daemon`: the libp2p daemon that hivemind ships, as one process: its folder, its command line, its start and
  its end
- `libp2p_limits`: the limits of a libp2p plane: how long it waits for proof, and how much it takes on at a time
- `libp2p_messages`: the wire format of protobuf, for the few messages of libp2p's own protocols that are spoken here
- `libp2p_stream`: a stream of the libp2p plane: a connection to the daemon of this machine, which hands it on
- `member_calls`: calls from member to member, a request and an answer each, over libp2p: both begin with their sender's
  credential
- `member_news`: news from member to member: who is banned, and who coordinates the swarm, also where no coordinator is
  heard
- `member_stream`: a libp2p stream between members: the first thing that each end says is its credential
- `multiaddress`: multiaddresses: whose they are, where they lead, and how they are announced
- `pinned_tls`: TLS 1.3 with a coordinator: contexts that accept the one key that an invite names, or the key that has
  taken its place
- `rate_cap`: caps on the bytes a second of all streams of a peer together, one in each direction
- `relay_guest`: the guest's side of relays: over which of them this peer can be reached, and where that is
- `route`: the route to one peer: what is known of the ways that lead there, and which one is to be tried next
- `shown_credential`: credential that a TLS context shows to the other end of a connection: a certificate, and the key
  that proves it
- `simultaneous_open`: connections between peers whose routers let nobody in, opened by both at the same time
- `sockets`: TCP sockets of direct connections: where they are taken, and how they are opened
- `tcp_info`: the kernel's knowledge of how a stream's bytes get to the other end (Linux)
- `tls_connections`: the TLS 1.3 connections from peer to peer, whose two ends have proven that they are members of the
  swarm
- `tls_stream`: a stream of the direct plane: TLS over a TCP connection, with nothing between it and the kernel
- `waiting_room`: a waiting room: those who have connected and have not proven yet who they are, of whom there are never
  too many
- `whereabouts`: whereabouts: members tell members where others are reached, each by its own word
"""
