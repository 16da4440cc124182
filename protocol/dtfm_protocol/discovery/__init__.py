"""Discovery of who is here: signed records that expire, on a distributed hash table.

- `dht`: signed records of who is here, on hivemind's Kademlia DHT
- `records`: the records that peers publish of themselves over the DHT: signed, schema-checked, expiring
"""
