"""Plans, presence and reports: the control plane's messages, and MQTT that carries them.

- `in_memory_control`: in-memory twin of the control plane: the same interface without a broker, over links that can
  fail
- `mqtt`: signed MQTT messages on typed topics
- `topics`: the control plane's messages, and the one table of topics that carry them
"""
