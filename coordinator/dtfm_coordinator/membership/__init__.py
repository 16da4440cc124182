"""Who is in the swarm, and where they are reached.

- `change_signal`: signal by which tasks wait until something that was heard makes a condition true
- `known_peers`: addresses at which peers say they are reached: by them a coordinator that comes back enters the network
  again
- `ledger_acts`: acts of the owner on who is a member, for commands and the owner's page: each is written to the
  ledger
- `ledger_file`: file of the membership ledger: one JSON object a line, written by the running coordinator and by its
  owner's commands beside it, each line at once
- `members`: members of the swarm, as far as presence, reports and DHT records tell (pure)
- `membership_ledger`: ledger of the swarm's membership: which invites were made and used, who has entered, who is
  banned (pure)
- `reachable_addresses`: addresses of peers at which something takes connections now
- `roster`: roster of a state folder: what members are called and who of them is here, and who is meant by a name
"""
