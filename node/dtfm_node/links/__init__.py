"""Links to other peers: measured, published, and shared among what is sent.

- `pacing`: who may use this machine's line, and how fast: frames that somebody's compute waits for go first, bulk when
  none is under way, neither over a link that is being measured, and all of them hardly faster than their link can carry
- `probe`: round-trip time and throughput to another peer, both ways, over the same streams that training uses
- `publisher`: what this node publishes over the DHT: its profile, and the links that it measures when it is asked to
- `rate_search`: how fast a link is: which transfer to make next, from how those before it came in (pure)
"""
