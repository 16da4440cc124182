"""`dtfm-coordinator check`: what a job file means, before anything is tokenized or served.

- `command`: command `check`: asks for the findings about a job file, prints them, and says whether it can be served
- `forecast`: forecast of a job's hours on made-up machines, by the allocator and its simulated step
- `job_findings`: findings about a job file: its model, text, stages and traffic, and all its mistakes
- `job_mistakes`: mistakes of a job file that its schema finds, all of them, and what is left of the job to look for
  others
- `job_screen`: screen of the findings about a job file: a few lines and two tables of 80 columns
"""
