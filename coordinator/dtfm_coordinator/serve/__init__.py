"""Service of a coordinator: its planes, its broker, and who takes over when it is gone.

- `compat_amqtt`: patch of amqtt 0.12, whose broker drops a client that connects while another one subscribes
- `embedded_broker`: embedded MQTT broker (amqtt), open to the swarm's members only
- `endpoints`: endpoints of a coordinator: the ports at which it listens, and the addresses under which it is announced
- `service`: service of a job: opens the three planes, hands out the invite, and lets the controller lead
- `standby`: follows what another coordinator does, and returns when the swarm has none for a while
"""
