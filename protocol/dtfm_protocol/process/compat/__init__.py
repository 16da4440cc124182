"""Faults of other people's libraries that are mended here, each with its versions.

- `hivemind`: late answers end its P2P client, its sockets stay in /tmp, and its clock is the machine's
- `known_versions`: whether an installed library is one for which a patch was made
- `wait_for`: Python 3.11's `asyncio.wait_for`, which aiomqtt and amqtt use, drops a cancellation that comes at a bad
  moment
"""
