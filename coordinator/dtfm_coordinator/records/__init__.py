"""What a run leaves on the coordinator's disk.

- `accusation_file`: file of the accusations that a coordinator has heard: a liar does not get its good name back by a
  restart
- `checkpoint_collector`: checkpoints as the stages hand them in: a file from each stage, a vote from each replica, then
  one manifest
- `contribution_book`: book of contributions: what each member has done for the run, as the coordinator signs it
- `event_log`: event log of a run: a line for each plan that began, in `history.jsonl`
- `growing_file`: growing file of lines that another part of the program appends to, or replaces as a whole
- `member_records`: records of who has done what: the shares of each plan, and what members have contributed
- `metrics_recorder`: recorder of metrics: writes down each step once, as the peers that train report it
- `state_vote_file`: file of the votes on states that a coordinator has heard, so that a restart forgets none
- `state_votes`: votes on states that a coordinator has heard, and what they certify
- `step_history`: history of a run's steps for people: totals, the newest steps, and curves of bounded size
"""
