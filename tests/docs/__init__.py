"""Tests of the documentation: it says what the programs do, and its links lead somewhere."""
