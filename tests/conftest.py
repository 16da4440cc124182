"""What holds for every test: the event loop's tools are those that the programs run with."""

from dtfm_protocol.compat.wait_for import mend_wait_for

mend_wait_for()
