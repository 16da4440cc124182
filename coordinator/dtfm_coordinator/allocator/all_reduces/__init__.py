"""All-reduces made for the links of who takes part: how much each sums, and along which trees.

- `carried_trees`: reductions of a changed plan, with parts and trees of the plan before it
- `chosen_trees`: a plan whose gradients are summed along trees where that is faster than straight to who sums them
- `least_reduction`: least seconds of an all-reduce over links that are each alone, along whatever trees
- `sized_parts`: parts of the all-reduces that are sized to links, by a linear program
- `tree_search`: the search for trees, and for how much goes along each, by simulated annealing
- `tree_shapes`: shapes that the search begins with: straight, a ring, two levels, around slow links
"""
