"""The model and its stages: any decoder-only model of `transformers`, cut where a plan says.

`config.py`   `resolve_config`, the job's model as one checked, JSON-able `transformers` config; `build_config`
`whole.py`    the whole model: for real, or as a skeleton that takes no memory
`tiny.py`     the same architecture at a size that costs nothing: `tiny_config`
`anatomy.py`  what a tiny donor tells of an architecture: where it can be cut, which parameters start as constants
`stage.py`    `build_stage`: embedding, decoder layers `[first, end)`, final norm and head; `loss_sum`
`initial.py`  `initial_value`, a function of seed and parameter name; `initialise` fills a stage
`shared.py`   `shared_names`, the parameters that first and last stage both hold
`sizes.py`    `model_sizes`: parameters of each part; `activation_bytes`
`memory.py`   `BYTES_PER_PARAMETER`: what a parameter costs whoever trains it
`layer.py`    `build_layer`: one decoder layer alone, for benchmarks
`check.py`    `check_sliceable`: refuses an architecture whose stages do not add up to the whole

Nothing here draws from the global random generators or changes them. Importing this package alone is cheap: `torch` and
`transformers` come with the modules.
"""
