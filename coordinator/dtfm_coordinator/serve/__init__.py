"""Service of a coordinator: its planes, its entrance and broker, and who takes over when it is gone.

- `announced_address`: announced address of a coordinator: whom the invite that names it lets in, and whether it leads
  here
- `appointment`: appointment of a coordinator that may take over: the card that introduces it, and the invite that must
  list it
- `ban_signing`: signing of bans, and of rulings on them, that a coordinator's ledger has: anew where who signed them
  was replaced
- `beginning`: beginning of a service as people see it: what is done before its coordinator leads
- `boards/`: boards for experiments, to which each step's metrics are written
- `coordinator_run`: run of a coordinator under one key: it opens its planes, stands by while another one leads, and
  leads
- `embedded_broker`: embedded MQTT broker: sessions of members whose keys the entrance has proven
- `endpoints`: endpoints of a coordinator: the ports at which it listens, and the addresses under which it is announced
- `enrolment_desk`: enrolment desk of a coordinator: newcomers get their credentials there, and the owner's decisions
  take effect
- `entrance`: one TLS port at which newcomers enrol, and members find the embedded broker and a desk
- `finished_run`: run that is over: what an owner hears who would have it trained once more
- `first_invite`: invite that `serve` prints: the addresses of a coordinator and of its standbys, and a token that lets
  nodes in
- `first_second`: first second of a service: its page is open, and says what is done, before the rest is imported
  and prepared
- `forced_plan`: plan that the owner forces: its file is read at the start, and again whenever it is written
- `job_edits`: edits of a job file that is served again, which become wishes of the owner
- `key_replacement`: replacement of a coordinator's key by a new one, in its state folder
- `member_desk`: desk of a coordinator at its entrance: gives a member what it asks for on a connection of its own
- `message_router`: who is to get a message, and which messages are kept for those to come
- `model_shelf`: shelf of the newest model, written out as `transformers` loads it, for members to fetch
- `mosquitto_files`: files with which Mosquitto keeps to the same rules as the embedded broker
- `mqtt_packets`: MQTT 3.1.1 packets: reads what clients send, within bounds, and writes what a broker answers
- `notices/`: notices to the owner: the run is done, has failed or stands still, a member was lost
- `own_key`: own key of a coordinator that serves, and the hand-over to a new one when the owner asks for it
- `serve_options`: options of `dtfm-coordinator serve`: what the owner decides beyond the job
- `service`: service of a job: prepares it, and serves it under one key after the other, as the owner replaces them
- `session_gate`: which packets of a member go on to the broker, and at what rate
- `standby`: follows what another coordinator does, and returns when the swarm has none for a while
- `standby_words`: what is said of a coordinator that stands by: of whom, how far behind, and when it takes over
- `start_check`: check of a job before its service starts: whatever can be known before any text is tokenized is said
  before
- `topic_rules`: who may write and read which topics of the swarm, and how much
- `web/`: the owner's page: the run in a browser, live, with what an owner may do about it
"""
