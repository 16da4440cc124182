"""The training engine of one peer: everything between a plan and a committed step.

- `stage_state`: the peer's slice of the model: forward, backward, gradients, optimizer, state by name (`StageState`)
- `layers`: how its layers run: plainly, keeping their inputs alone, or compiled
- `matrices`: gradients of matrix products, added where they are summed, at once or later (`Matrices`)
- `machine`: the device, the threads that use it, and the tracer (`Machine`)
- `staging`: between the device's memory and the bytes that are sent (`Staging`)
- `buckets`: which gradients are reduced together, by whom, in which parts (`Bucket`)
- `exchange`: frames to and from the other peers of one plan: the parts below, put together (`Exchange`)
- `mailbox`: which frames are due, which have come, who is gone (`Mailbox`); `refusals`: what is wrong with others
- `receiver`: the waiting around it: for frames, and for room (`Receiver`)
- `sender`: frames on their way, urgent ones first (`Sender`)
- `heartbeat`: pulses, and who is silent (`Heartbeat`); `patience`: for how long it may be (`Patience`)
- `inflow`: how fast frames come in from each peer (`Inflow`)
- `clock`: the time that these go by (`MonotonicClock`)
- `step_traffic`: who sends what to whom in a step (`Message`)
- `expectations`: which frames a step brings, and how large they are (`Expected`)
- `executor`: runs a schedule's actions and an evaluation (`Executor`)
- `allreduce`: the sharded all-reduce of one bucket (`AllReduce`)
- `commit`: votes, and the arbiter that makes a step final (`Arbiter`)
- `balloting`: votes and commits on their way (`Balloting`)
- `trainer`: the steps of one plan, from its first state to its last (`Trainer`)
"""
