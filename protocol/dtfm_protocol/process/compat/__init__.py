"""Repairs of faults of other people's libraries, each for the versions that have the fault.

- `hivemind`: faults of hivemind 1.1: late answers end its P2P client, its sockets stay in /tmp, and its clock is the
  machine's
- `known_versions`: the check that an installed library is one for which a patch was made
- `wait_for`: the `asyncio.wait_for` of Python 3.11, which aiomqtt and amqtt use: it drops a cancellation that comes at
  a bad moment
"""
