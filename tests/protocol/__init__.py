"""Tests of the protocol: what both sides say and agree on."""
