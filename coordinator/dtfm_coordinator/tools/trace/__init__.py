"""`dtfm-coordinator trace`: one timeline of what all nodes did, from the file that each of them wrote.

- `chrome_format`: Chrome's trace format ("Trace Event Format") of the merged timeline, as Perfetto reads it (pure)
- `clock_alignment`: alignment of the nodes' clocks, by the messages between them (pure)
- `command`: command `trace`: reads the nodes' files, aligns their clocks, says what came of it
- `message_pairs`: pairing of messages: which receive belongs to which send (pure)
- `step_medians`: medians of what each node's steps are made of: seconds computed, waited, reduced and updated (pure)
"""
