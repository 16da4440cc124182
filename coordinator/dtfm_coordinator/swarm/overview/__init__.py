"""Overview of a run for people: one plain value, which `status` and the owner's page both show.

- `health`: health of a run in one plain sentence: is it going well, and what to do if not
- `loss_course`: course of the loss for people: whether it goes down, rises, or is not finite any more (pure)
- `member_views`: what each member does, in plain words, and why if nothing
- `news`: news for people: what has changed between two overviews, in plain words, with what to do
- `overview`: overview of a run: the schema
- `overview_feed`: feed of overviews to whoever looks: whole ones, and what has changed since the one before
- `overview_maker`: maker of overviews, of what the coordinator knows
- `owner_words`: plain words for the owner: what a coordinator does, and what that means for the run
- `plan_map`: map of a plan: stages, pipelines, and the links that they use
- `spoken_numbers`: numbers as people say them: durations and counts
- `step_pace`: pace of steps beside what the plan said of it, in words for people (pure)
- `storage_watch`: watch over what a run has stored: checkpoints, and room on the disk
"""
