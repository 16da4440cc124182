"""Links to other peers: measured, published, and shared among what is sent.

- `burst_rate`: rate of a far link, known from the bursts of a flow that does not fill it yet (pure)
- `fan`: measurement of what this peer can send to, and receive from, several others at once
- `flows`: flows of data, one or several at once, until this end's kernel has told what the way carries
- `measured_links`: measuring of this node's links in rounds that the coordinator asks for, and what was found so far
- `opened_ahead`: streams to the peer with which a link is measured next, opened ahead
- `pacing`: order and pace of what uses this machine's line: frames that somebody's compute waits for first, bulk when
  none is under way, neither over a link that is being measured, and all of them hardly faster than their link can carry
- `probe`: measurement of a link: round-trip time and throughput to another peer, both ways, over the streams that
  training uses
- `publisher`: publisher of this node's profile, and of the links that it measures, over the DHT
- `rate_search`: search for a link's rate: says which transfer to make next, from how those before it came in (pure)
- `short_queue`: short queue of a flow by which a link is measured: held to what the link carries once one has grown
- `steady_rate`: rate of a flow whose congestion window opens, known as soon as the link is full (pure)
- `timed_transfers`: transfers between two peers that are timed, and the requests for them
- `witness`: witness of flows by which another peer measures its link with this one, so that nobody does so twice
"""
