"""Links between peers as the cost models use them: seconds and bytes a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from dtfm_protocol.view.view import GBIT, View

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Links:
    """Delay and bandwidth of each pair alone, and what each peer can send and receive over all its links together."""

    index: Mapping[str, int]
    """Row and column of each peer, by its id."""
    alpha: Matrix
    """One-way delay, seconds, shape (N, N)."""
    beta: Matrix
    """Bandwidth of a pair alone, bytes a second, shape (N, N); 0 is a pair that cannot talk."""
    uplink: Matrix
    """Bytes a second that a peer can send over all its links together, shape (N,); infinite where unknown."""
    downlink: Matrix
    """Bytes a second that a peer can receive over all its links together, shape (N,); infinite where unknown."""

    @classmethod
    def of(cls, view: View) -> Self:
        """Return the links of a view; no pair is faster than its sender's uplink or its receiver's downlink."""
        up = np.array([np.inf if node.up_gbps is None else node.up_gbps * GBIT for node in view.nodes])
        down = np.array([np.inf if node.down_gbps is None else node.down_gbps * GBIT for node in view.nodes])
        beta = np.minimum(view.beta(), np.minimum(up[:, None], down[None, :]))
        np.fill_diagonal(beta, np.inf)
        return cls({peer: row for row, peer in enumerate(view.ids)}, view.alpha(), beta, up, down)

    def pairs(self, senders: Sequence[str], receivers: Sequence[str]) -> tuple[Matrix, Matrix]:
        """Return delays (seconds) and bandwidths (bytes a second) between peers, each of shape (senders, receivers)."""
        block = np.ix_([self.index[peer] for peer in senders], [self.index[peer] for peer in receivers])
        return self.alpha[block], self.beta[block]

    def message_seconds(self, senders: Sequence[str], receivers: Sequence[str], size: float) -> Matrix:
        """Return the seconds that one message of `size` bytes takes alone, shape (senders, receivers)."""
        return pipeline_seconds(*self.pairs(senders, receivers), size)


def pipeline_seconds(alpha: Matrix, beta: Matrix, activation_bytes: float) -> Matrix:
    """Return the seconds that one boundary message of `activation_bytes` takes on each ordered pair, shape (N, N)."""
    return alpha + transfer_seconds(activation_bytes, beta)


def transfer_seconds(size: float, beta: Matrix) -> Matrix:
    """Return the seconds that `size` bytes take alone at the bandwidths `beta`, bytes a second; infinite where that is
    0."""
    seconds = np.full_like(beta, np.inf)
    return np.divide(size, beta, out=seconds, where=beta > 0)
