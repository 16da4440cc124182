"""Several devices of one machine: one `dtfm-node join` that runs a node on each of them.

- `device_folders`: folders of the devices' nodes, under the state folder with which they joined
- `device_list`: list of the devices that `--device` names, where they are several
- `device_nodes`: nodes of several devices as child processes: started, watched, started again, ended together
- `device_shares`: shares of what one person has allowed, for each of several devices (pure)
- `devices_screen`: screen of several devices: a line for what each of them does
- `restarts`: whether a node that has ended is started again, and when (pure)
"""
