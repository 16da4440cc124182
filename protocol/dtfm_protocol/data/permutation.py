"""A keyed shuffle of `range(size)` that is evaluated one index at a time and takes no memory."""

from hashlib import blake2b
from math import isqrt

ROUNDS = 6
"""Rounds of the Feistel network."""


class Permutation:
    """A pseudo-random bijection of `range(size)`, chosen by `key`: the same on every machine.

    A Feistel network over pairs of residues, walked until it lands inside: Black and Rogaway, "Ciphers with
    Arbitrary Finite Domains" (CT-RSA 2002), sections 4 and 5. The square that holds `size` is hardly larger than it,
    so that a second walk is rare.
    """

    def __init__(self, size: int, key: str) -> None:
        if size < 1:
            raise ValueError(f"a permutation of {size} elements")
        self._size = size
        self._side = isqrt(size - 1) + 1
        self._key = blake2b(key.encode(), digest_size=32).digest()

    def __call__(self, index: int) -> int:
        """Return the image of `index`; both are in `range(size)`."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        while True:
            index = self._shuffle(index)
            if index < self._size:
                return index

    def _shuffle(self, index: int) -> int:
        left, right = divmod(index, self._side)
        for turn in range(ROUNDS):
            left, right = right, (left + self._hash(turn, right)) % self._side
        return left * self._side + right

    def _hash(self, turn: int, value: int) -> int:
        message = turn.to_bytes(1, "little") + value.to_bytes(8, "little")
        return int.from_bytes(blake2b(message, key=self._key, digest_size=8).digest(), "little")
