"""Networks to plan on without having them: views of as many nodes as one asks for.

- `catalogue`: every network that can be made up, by its name
- `consumer_gpus`: what volunteers compute with: consumer GPUs, their speed and memory
- `contrived`: networks made to be hard in one way each
- `home`: volunteers at home: broadband lines, cities apart, consumer GPUs
- `node_groups`: networks whose links depend on nothing but the groups that their two ends belong to
- `paper_networks`: the five networks of the paper's evaluation (arXiv 2206.01288, section 4), and its sizes
- `summary`: a view in a few words
"""
