"""`dtfm-coordinator trace`: one timeline of what all nodes did, from the file that each of them wrote.

- `chrome_format`: the merged timeline in Chrome's trace format ("Trace Event Format"), as Perfetto reads it (pure)
- `clock_alignment`: how far the nodes' clocks are apart, by the messages between them (pure)
- `command`: reads the nodes' files, aligns their clocks, says what came of it
- `message_pairs`: which receive belongs to which send (pure)
"""
