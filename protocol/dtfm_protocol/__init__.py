"""What both sides of a swarm say to each other, and agree on."""

import os

os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")  # its warnings are for its own developers; ours name the cause
