"""Networks to plan on without having them: views of as many nodes as one asks for.

- `alike_homes`: the network of alike volunteers: as many of one stated home machine, each in another city
- `catalogue`: the catalogue of networks that can be made up, by name
- `consumer_gpus`: the consumer GPUs with which volunteers compute: their speed and memory
- `contrived`: networks made to be hard in one way each
- `home`: the network of volunteers at home: broadband lines, cities apart, consumer GPUs
- `node_groups`: networks whose links depend on nothing but the groups that their two ends belong to
- `paper_networks`: the five networks of the paper's evaluation (arXiv 2206.01288, section 4), and its sizes
- `summary`: the summary of a view in a line: its nodes, its regions, and how fast its links are
"""
