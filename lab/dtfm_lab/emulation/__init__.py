"""An emulated network on one machine: hosts with delays and rates between them, for real processes and real bytes.

- `accuracy`: how true a lab is: delays, rates and fairness as programs on its hosts find them, beside what was asked
  for
- `command`: `dtfm-coordinator lab`: a command on the hosts of an emulated network
- `emulated_links`: what a packet meets on its way: its sender's uplink, the pair's own rate, the delay, its receiver's
  downlink (pure)
- `emulator`: takes packets from each host's TUN device, and hands them to the others when they are due
- `gauge`: a small program on a lab's hosts that finds delays and rates
- `hosts`: hosts of a lab: network namespaces, each with an address and a TUN device
- `lab`: hosts, the forwarding process between them, and its counts
- `tun`: what a host sends is read here as packets, and what is written here it receives
- `world`: a view's links, and what else a lab needs to know to make them
- `world_script`: how a world changes: timed events, as a file says them (pure)
"""
