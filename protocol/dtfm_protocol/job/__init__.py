"""The job: what is to be trained, and what each step of it came to.

- `amendment`: amendments of a job: which of its values may change while it trains, and what they become (pure)
- `amendments_file`: `amendments.jsonl`: how a job was changed while it trained, one amendment a line
- `data_table`: the `[data]` table of the job file: which documents are read, and how they become tokens
- `document_template`: template of a document: text with the names of columns in braces, which a row fills in (pure)
- `evaluation_set`: the `[[evaluation.sets]]` of the job file: documents by a name, on which a model is evaluated and
  never trained
- `hub_folder`: the folder of a model of a hub, as `huggingface_hub` has it on this machine, or downloads it
- `job_file`: what the owner wants trained, and how
- `job_limits`: the largest jobs that this program takes on: what a plan and its messages can count (pure)
- `job_timeline`: which values hold for which step of a job that was amended while it trained (pure)
- `learning_rate`: learning rate of a step: warm-up, and schedules down to a floor (pure)
- `metrics_file`: `metrics.jsonl`: one row a committed step, exactly once, in order
- `resolved_job`: the job as peers see it: no paths, the model's config spelled out, the tokens named by hash
- `step_metrics`: the metrics of a committed step: one row of `metrics.jsonl`
- `step_words`: words for people on a committed step, and on how far the training is with it (pure)
"""
