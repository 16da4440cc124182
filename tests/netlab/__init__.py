"""Homes behind NAT, in network namespaces.

- `homes`: the routers and hosts (`Homes`)
- `test_homes`: how peers there reach each other
"""
