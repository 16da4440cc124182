"""The commands of `dtfm-coordinator`: what each takes, and which late import it runs.

Late, so that `--help` is there at once and a command whose extra is not installed can say so.

- `change_commands`: change what a run trains, and begin a new one from it
- `checkpoint_commands`: commands on the checkpoints of a run: list them, export one, keep one for good
- `job_commands`: commands on a job file before it is served: what it means, and whether anything is wrong with it
- `lab_commands`: researchers' commands: compare algorithms, make up a network, run something on an emulated one
- `membership_commands`: commands of the owner on who is a member: invites, the list of members, how to be rid of one
- `model_commands`: commands on a swarm's state directory: its model, exported or sampled from, and what is going on
- `option_types`: arguments and options that several commands take
- `owner_commands`: commands by which the owner steers a run: pause, resume, checkpoint, replan, finish
- `page_commands`: command of the owner's page: the links that lead to it
- `plan_commands`: commands about plans and steps: make a plan, say where its step goes, merge the traces of nodes that
  ran it
- `swarm_commands`: commands of a running swarm: serve a job, introduce a second coordinator, train on this machine
  alone
"""
