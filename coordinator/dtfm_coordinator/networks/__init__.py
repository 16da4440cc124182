"""Networks to plan on without having them: views of as many nodes as one asks for.

- `catalogue`: every network by its name
- `paper`: the five of the paper's evaluation, and its sizes
- `home`: volunteers' homes; `machines`: what they compute with
- `contrived`: hard in one way each
- `groups`: how a network is made whose links depend on groups alone
- `summary`: a view in a few words
"""
