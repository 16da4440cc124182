"""An emulated network on one machine: hosts with delays and rates between them, for real processes and real bytes.

- `accuracy`: the accuracy of a lab: delays, rates and fairness as programs on its hosts find them, beside what was
  asked for
- `command`: the command `dtfm-coordinator lab`: a program run on the hosts of an emulated network
- `emulated_links`: the links that a packet meets: its sender's uplink, the pair's own rate, the delay, its receiver's
  downlink (pure)
- `emulated_network`: hosts, the forwarding process between them, and its counts
- `emulator`: the forwarding process: it takes packets from each host's TUN device, and hands them to the others when
  they are due
- `hosts`: the hosts of a lab: network namespaces, each with an address and a TUN device
- `probe_program`: the small program that finds delays and rates on a lab's hosts
- `tun`: the TUN devices of hosts: what a host sends is read here as packets, and what is written here it receives
- `wiring`: the world of a lab: a view's links, and what else a lab needs to know to make them
- `world_script`: the changes of a world: timed events, as a file says them (pure)
"""
