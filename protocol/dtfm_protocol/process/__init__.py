"""The process of a program: its command line, state directory, logs, child processes, and traces.

- `compat/`: repairs of faults of other people's libraries, each for the versions that have the fault
- `allowance`: an allowance: how much of something may be used at once, and how fast it comes back
- `child_processes`: child processes that do not outlive their parent
- `clock`: the clock of waits, which is passed in, so that tests need not wait
- `command_line`: the run of a command: one event loop, signals that end it cleanly, errors as one line and an exit code
- `confined_process`: a copy of this process that works once within bounds of memory and time
- `console`: the console on which commands print tables for people
- `entry_file`: a file of entries, one JSON object a line, appended to by a program and by commands beside it
- `extras`: packages that only some commands need, and that pip installs where they are asked for (`dtfm[NAME]`)
- `fault_injection`: named points at which a test may have a process die, stop or wait; nothing happens at them
  otherwise
- `freshness_files`: files in a state dir by which counters outlive a process: this program's own, and those that it has
  heard of others
- `garbage_pause`: the pause of Python's garbage collector while much is made that stays
- `late_actions`: late actions of programs that are paced like slower devices: what the machine under them could not
  keep up with
- `logs`: logging for both programs: short lines for people, or one JSON object a line
- `memory_limit`: the limit that the system sets on a process's memory: an allocation above it fails
- `outage`: an outage of something that is tried again and again, and when that is worth a line of the log
- `product_version`: the version of the product, which both programs print for `--version`
- `quantities`: quantities in words, alike in all commands: sizes in decimal units, and the time that is left
- `source_digest`: the digest of Python sources: what is kept under it is outdated once the sources have changed
- `state_dir`: a program's state directory: closed to other users, locked while it runs, its files replaced whole
- `supported_platform`: the systems on which the programs run, and what is said on others
- `tally`: a tally of what others did wrong, by reason, whose size they cannot make grow
- `timeouts`: table of timeouts that a person may want to change, with the reasons
- `trace_format`: the timeline of a run: the file in which each node keeps what it did and when
- `version_agreement`: whether programs of unlike versions work together, and what is said where they do not
- `work_apart`: work apart from the rest of a program: a thread that nobody waits for when the program is to end
"""
