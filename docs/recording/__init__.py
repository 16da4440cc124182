"""Recordings of a terminal as animated pictures: `python -m docs.recording` makes `docs/recording/join.svg` anew, from
a volunteer's real session in a real swarm on this machine.

- `animation`: frames as one animated SVG, of which each line is stored once
- `cast`: what a terminal has shown and when, its waits cut short, as frames
- `screen`: a terminal's screen after what was written to it
- `session`: a shell at a terminal of its own, at which words are typed
"""
