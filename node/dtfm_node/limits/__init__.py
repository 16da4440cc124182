"""Limits of what a node may take of its machine, and when it may work at all.

- `availability`: availability of this machine: whether the node may work now, and in plain words why not (pure)
- `availability_watch`: watch over the machine and its person's word: has the node pause, and go on
- `draining`: wait of a node that is to stop until others have what it holds, and when that is given up (pure)
- `hours`: hours of the day in which a node may work
- `machine_readings`: readings of the machine: battery, use by others, metered network
- `pause_order`: order to pause, in a file of the state folder: `dtfm-node pause` writes it, the node follows it
- `traffic_rate`: rate of traffic as a person writes it, with its unit
- `work_priority`: priority of this process for the processor and the disk, the lowest unless its person wants another
"""
