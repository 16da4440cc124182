"""The model and its stages: any decoder-only model of `transformers`, cut where a plan says.

- `architecture_probe`: the probe of an architecture by a tiny donor: where it can be cut, which parameters start as
  constants
- `base_forms`: the forms in which weights are kept that a job begins with: fp32, bf16, or int8 with a scale for each
  output
- `base_source`: the weights in a model's folder, read layer by layer as `transformers` loads them: never more than one
  is in memory
- `base_values`: the values that a job's parameters begin with: drawn from its seed, or those of its pieces
- `frozen_parameters`: the frozen parameters: those that training leaves as they begin, a function of the job and a
  parameter's name
- `initial_weights`: the initial weights: a function of seed and parameter name, so that any cut of the model starts as
  the whole does
- `lora`: LoRA: small matrices that are trained beside matrices which are not (Hu et al., arXiv 2106.09685), named as
  `peft` names them
- `memory_model`: the memory of whoever trains a stage
- `model_config`: the job's model as one whole `transformers` config: every field spelled out, checked, ready for JSON
- `model_sizes`: the sizes of a model: parameters of each part, and the memory that a micro-batch's activations take
- `packing_check`: the check that an architecture keeps documents apart that are packed into one sequence, or else it is
  refused for such jobs
- `pretrained_weights`: the pretrained weights in a model's folder, looked at by their files' headers alone, before
  anything is loaded
- `quiet_loading`: quiet loading and saving of models, without the progress bars of `transformers`
- `random_state`: the state of torch's global random generator, put back after model code that may draw from it
- `single_layer`: a single decoder layer, which a peer times and weighs before it knows its stage
- `slicing_check`: the check that stages of an architecture add up to the whole model, or else the architecture is
  refused
- `stage`: a stage: embedding, decoder layers `[first, end)`, final norm and head, taken out of the whole model's
  skeleton
- `stage_compute`: the compute of a stage, counted in decoder layers: what a micro-batch takes there, of which some
  may not be trained
- `stage_demand`: the demand on the memory of whoever trains a stage of a job, by the rule that the allocator plans with
- `tied_embeddings`: the parameters that first and last stage share: those of tied embeddings
- `tiny_model`: the tiny model: the same architecture at a size that costs nothing, for what it does shows at any size
- `whole_model`: the whole model: built for real, where it is tiny, or as a skeleton that takes no memory

Nothing here draws from the global random generators or changes them. Importing this package alone is cheap: `torch` and
`transformers` come with the modules.
"""
