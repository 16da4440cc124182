"""What is looked at, one file a subject.

invite     whether the text is an invite
broker     the way to the coordinator: name, TCP, TLS, password, who is there
doors      the way to the other peers: TCP, libp2p, the DHT and what is in it
clock      how far this machine's clock is off
reach      whether others can reach this machine: its addresses, NAT, --announce
ports      whether the ports can be listened at
ipv6       whether IPv6 works where it is offered
leftovers  other nodes here, and what is left of killed ones
machine    memory, disk, open files
versions   Python and the libraries
"""
