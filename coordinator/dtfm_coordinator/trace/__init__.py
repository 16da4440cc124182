"""`dtfm-coordinator trace`: one timeline of what all nodes did, from the file that each of them wrote.

- `command`: reads the files, asks what follows, says it
- `messages`: which receive belongs to which send (pure)
- `clocks`: how far the nodes' clocks are apart, by the messages between them (pure)
- `chrome`: the merged timeline in Chrome's trace format (pure)
"""
