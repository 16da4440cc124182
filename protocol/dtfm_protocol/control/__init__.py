"""The control plane: messages for plans, presence and reports, and MQTT that carries them.

- `contribution_record`: a coordinator's signed word on what one member has done for a run
- `coordinator_lookup`: a look at the entrances that an invite names, for keys that have taken the places of its
  coordinators
- `in_memory_control`: the in-memory twin of the control plane: the same interface without a broker, over links that can
  fail
- `member_requests`: what members ask of a coordinator's desk at its entrance, and its answers
- `messages`: the control plane's messages, and the one table of topics that carry them
- `mqtt`: the control plane over MQTT: signed messages on typed topics
"""
