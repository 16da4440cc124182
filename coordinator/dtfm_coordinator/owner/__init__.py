"""What the owner of a run asks of it while it goes on: to pause, to keep a checkpoint, to plan anew, to end.

- `amending`: how the wishes to change a job become amendments of it: from which step, or why not (pure)
- `job_on_disk`: job of a run as its state folder has it: how it began, how it was changed, what is still wished of it
- `owner_acts`: acts of the owner as people read them: each wish that was answered, and each decision on who is a member
- `owner_desk`: desk of a running coordinator for its owner's wishes: reads them as they are written, and answers them
- `owner_wishes`: wishes of the owner as records, and what they come to when summed up (pure)
- `wish_file`: file of the wishes, written by the owner's commands and by the coordinator that answers them
"""
