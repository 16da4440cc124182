"""What both sides of a swarm say to each other, and agree on."""
