"""`dtfm-node doctor`: what goes wrong for ordinary people, found before they join, each with one thing to do.

findings    what a check has found, and what all findings come to
wire        names, TCP connections and addresses, looked at
outside     what libp2p peers tell about this machine: the address they see it at, whether they can connect to it
checks      one file a subject; in each, `look` gathers plain data and `judge` makes findings of it
apart       work in a process of its own
need        what the job asks of any node
options     what the person would join with
examine     runs all looks side by side, each within its time, and has them judged
report      findings as text for people, or as JSON
command     the command itself
"""
