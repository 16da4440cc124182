"""Repairs of faults of other people's libraries, each for the versions that have the fault.

- `hivemind`: patch for hivemind 1.1: late answers end its P2P client, its sockets stay in /tmp, its clock is the
  machine's
- `known_versions`: the check that an installed library is one for which a patch was made
- `wait_for`: patch for Python 3.11: its `asyncio.wait_for`, which aiomqtt uses, may drop a cancellation
"""
