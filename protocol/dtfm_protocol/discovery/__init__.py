"""Discovery of who is here: signed records that expire, on a distributed hash table of the members alone.

- `dht`: signed records of who is here, on hivemind's Kademlia DHT
- `dht_calls`: the DHT's calls between members: hivemind's requests and answers, each after its sender's credential
- `dht_entry`: the entry to a DHT by peers that belong to it, tried again and again
- `record_rules`: the rules by which a peer keeps and believes records of others: whose, where, how large, and for how
  long
- `records`: the records that peers publish of themselves over the DHT: signed, schema-checked, expiring
- `registry`: the registry of a swarm: what its peers publish of themselves, typed, sealed and checked, over any
  discovery
"""
