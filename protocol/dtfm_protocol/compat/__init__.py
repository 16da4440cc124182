"""Patches of third parties, one file for each library; each names what it works around, and for which versions.

- `known_versions`: whether what is installed is what a patch was made for
- `hivemind`: late answers, the folder of its sockets, and its clock
- `wait_for`: Python 3.11's `asyncio.wait_for`

amqtt, which only the coordinator needs, is patched there (`dtfm_coordinator.compat_amqtt`).
"""
