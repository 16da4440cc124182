"""`dtfm-coordinator lifetimes`: a job on machines that come and go, in virtual time, with the coordinator's decisions.

- `command`: command `lifetimes`: reads the files, has the run lived through, prints and draws what came of it
- `lifetimes_chart`: chart of a run in virtual time: who was there and who trained, and how far the training was
- `lifetimes_report`: report of a run in virtual time, as tables for people and as rows
- `lived_run`: run of a job in virtual time: steps, plan changes and waits, as machines come and go (pure)
- `machine_trace`: trace of machines that come and go, as a CSV file says it (pure)
- `plans_in_time`: plans of a run in virtual time: what the allocator makes of those who are there, and what moves
"""
