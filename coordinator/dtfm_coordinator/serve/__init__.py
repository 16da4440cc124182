"""Service of a coordinator: its planes, its broker, and who takes over when it is gone.

- `compat_amqtt`: patch for amqtt 0.12: its broker drops a client that connects while another one subscribes
- `embedded_broker`: the embedded MQTT broker (amqtt), open to the swarm's members only
- `endpoints`: at which ports the coordinator listens, and under which addresses it is announced
- `service`: opens the three planes, hands out the invite, and lets the controller lead
- `standby`: follows what another coordinator does, and returns when the swarm has none for a while
"""
