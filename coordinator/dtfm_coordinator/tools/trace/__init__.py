"""`dtfm-coordinator trace`: one timeline of what all nodes did, from the file that each of them wrote.

- `aligned_traces`: traces of a swarm's nodes on one clock: reads their files, aligns them
- `chrome_format`: Chrome's trace format ("Trace Event Format") of the merged timeline, as Perfetto reads it (pure)
- `clock_alignment`: alignment of the nodes' clocks, by the messages between them (pure)
- `command`: command `trace`: merges the nodes' files, and says what came of it
- `measured_step`: one training step as the traces tell it, to be set beside a simulated one (pure)
- `message_pairs`: pairing of messages: which receive belongs to which send (pure)
- `step_medians`: medians of what each node's steps are made of: seconds computed, waited, reduced and updated (pure)
"""
