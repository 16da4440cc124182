"""Commands of a volunteer.

- `bench`: `dtfm-node bench`: prints what this device would tell a swarm of its speed and memory
- `chosen_limits`: limits that the person of a machine has chosen: read all at once, and said in words
- `config_file`: config file of a node: the options of `join`, for those who do not want to type them again
- `consent`: consent to take part in a swarm: asked for once, before anything is made or sent
- `contribution`: `dtfm-node contribution`: shows, or checks, signed records of what nodes have contributed
- `early_enrolment`: enrolment of a newcomer before the slow imports: who is not let in hears it at once
- `fetch_model`: `dtfm-node fetch-model`: takes the model home that this machine has helped to train
- `gpu_look`: look for a GPU before the slow imports: what the machine itself tells, without torch
- `join_command`: command `join` before its options are looked at: which invite, which folder, what the config file says
- `join_devices`: `dtfm-node join` on several devices: a node on each of them, each with a folder and a key of its own
- `kept_contributions`: records of contributions that stay when a node's files are removed
- `kept_invite`: invite that a node keeps in its state folder, so that it can be started again without one
- `kept_options`: options of `join` that outlive it: kept in the config file, and said at each start
- `leave`: `dtfm-node leave`: asks the daemon of a state dir to drain, and waits until it has ended
- `limit_options`: options of `join` that limit what the node takes of its machine, and when it works
- `model_download`: download of a model, file by file, each whole and with its hash, or not there
- `node_status`: `dtfm-node status`: says what the node of a state folder is doing, or was doing last
- `pause`: `dtfm-node pause` and `dtfm-node resume`: say to the node of a state folder that it is to pause, or to go on
- `recognition_commands`: commands on what a node has contributed, and on the model that came of it
- `remove`: `dtfm-node remove`: deletes what a node that has left keeps of its swarm, and nothing else
- `running_nodes`: state folders of this user's nodes that run now, wherever they lie
- `node_service`: `dtfm-node service`: has the system start the node of a swarm by itself, and again whenever it fails
- `service_files`: files by which a system starts a node: a systemd unit, a launchd agent, a Windows task
- `solo`: solo training of a job in one process: the plain training loop that every swarm is compared with
- `state_folders`: state folders that nobody has named: one for each swarm, where this system keeps programs' data
- `terms`: terms of taking part: one screen on what a node does with the machine, keeps, sends, and shows to others
- `yes_no_question`: a question to the person at the terminal, answered with yes or no
"""
