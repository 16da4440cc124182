"""Transports of bytes from peer to peer: libp2p, TLS, relays, and holes through routers.

- `certificates`: TLS between peers: certificates that carry the peers' own keys, and the contexts that trust those met
  so far
- `circuit_relay`: the relay over which members are reached to whom nobody can connect: one to which everybody can
- `direct`: the data plane of a running peer: TLS 1.3 over TCP where one peer can reach the other, libp2p for the rest
- `direct_bounds`: the bounds of a direct plane: how long it waits, and how much it takes on at a time
- `hole_punching`: a stream to a peer to whom nobody can connect, over a connection that both open at
  the same time
- `in_memory`: the in-memory twins of the data plane and of discovery: the same interfaces without processes or sockets
- `in_memory_links`: in-memory links and their faults: what is sent arrives late, out of order, not yet, or never
- `libp2p`: the data plane on libp2p, through the daemon that `libp2p_daemon` starts and ends
- `libp2p_daemon`: the libp2p daemon that hivemind ships, as one process: its folder, its command line, its start and
  its end
- `multiaddress`: whose they are, where they lead, and how they are announced
- `route`: the route to one peer: what is known of the ways that lead there, and which one is to be tried next
- `simultaneous_open`: connections between peers whose routers let nobody in, opened by both at the same time
- `sockets`: TCP sockets of direct connections: where they are taken, and how they are opened
- `tcp_info`: the kernel's knowledge of how a stream's bytes get to the other end (Linux)
- `tcp_knock`: a knock: whether something takes TCP connections at an address
- `tls_connections`: the TLS 1.3 connections from peer to peer, whose two ends have proven the keys that their peer ids
  carry
- `tls_stream`: a stream of the direct plane: TLS over a TCP connection, with nothing between it and the kernel
"""
