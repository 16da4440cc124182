"""The command `dtfm-coordinator compare`: each algorithm's plans for one view, over several seeds.

- `algorithm_outcomes`: the outcomes of algorithms: a plan or a failure for each seed, and their summaries (pure)
- `algorithm_tables`: the tables of a comparison, for people
- `command`: the command `compare`: runs the algorithms, prints the tables, writes the rows
"""
