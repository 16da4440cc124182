"""Swarms of real processes on this machine, for the tests and for the benchmarks.

- `daemon`: one process, which may be started several times (`Daemon`)
- `jobs`: the little jobs that they train (`Size`, `TINY`, `SMALL`)
- `swarm`: a coordinator, nodes and whatever else runs in a folder of their own (`Swarm`); the same job alone (`solo`)
- `run_folder`: a folder that all processes of a test run share
- `warm_start`: console scripts as forks of a process that has imported everything; `SWARM_WARM` in the environment
  asks for them
- `lying_node`, `impatient_coordinator`: programs that are started like console scripts
- `requirements`: what a machine may lack (`needs`)
- `disks`: a disk that is full
- `event_loops`: both event loops, for the tests that are to hold on each (`event_loop_policy`)
- `entrances`: coordinators' entrances with an embedded broker, and members that come in
- `invites`: invites to swarms of which there need be nothing but an address (`invite_to`)
- `libp2p_stranger`: a stranger's libp2p, as little of it as connects to a daemon (`Libp2pStranger`)
- `membership`: coordinators, members and strangers of a swarm, with the credentials that they hold
- `manual_clock`: a clock that stands until a test moves it (`ManualClock`), and one that is fast (`FastClock`)
- `shifted_clock`: a clock that is off, for one process (`shifted`)
- `machine_code`: the machine code of both searches, made before tests that would each make it
- `memo`: a memo of pure functions, and one object for each value (`remembered`, `only`)
- `drawn_trees`: trees of reductions, as tests draw them
- `named_peers`: peers with keys that tests call by plain names
- `later_version`: a later version of the product, installed beside this one (`install`)
- `terminal`: a program at a terminal of its own, at which a test types (`Terminal`)
- `state_search`: a search through all states that a model can reach
"""
