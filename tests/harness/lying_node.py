"""A node that trains as all do, but for one lie, which the variable `LIE` names: the program `lying-node`.

- `states` (where nothing is named): it signs other digests of its states than it has.
- `silence`: it never hands in its share of a checkpoint.
- `gradients`: from step `FROM` on its gradients are a million times what they should be: too much
  whatever shares and parts a plan gives (`benchmarks/alarms.py` tells from what factor on it is seen).
- `sums`: from step `FROM` on it gives the first of the other replicas another sum than the rest, each under its seal.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Self

import torch

from dtfm_node.engine.allreduce import AllReduce
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.gradient_norm import sum_of_squares
from dtfm_node.engine.part_alarm import PartAlarm, Strain
from dtfm_node.main import main as node
from dtfm_node.state.checkpoint_upload import CheckpointShare, CheckpointUpload
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.mark import LayerRange, Mark
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.wire.codecs import from_bytes, to_bytes
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes

FROM = 20
"""First step of a lie about gradients: enough steps have shown the others what is usual."""

honest_vote = StateVote.made.__func__  # type: ignore[attr-defined]
honest_run, honest_send = AllReduce.run, Exchange.send


class AccusesNobody(PartAlarm):
    """An alarm that nothing sets off: beside gradients a million times as large, everybody's are odd."""

    def __init__(self) -> None:
        """Know of no parts."""

    def judge(self, *_: object) -> dict[str, Strain]:
        return {}


def sign_other_states() -> None:
    """Sign something else, with a genuine signature; the same each time."""

    def false(cls: type[Self], signer: Signer, mark: Mark, layers: LayerRange, digest: str) -> Self:
        return honest_vote(cls, signer, mark, layers, hashlib.sha256(digest.encode()).hexdigest())  # type: ignore[no-any-return]

    StateVote.made = classmethod(false)  # type: ignore[assignment, method-assign]


def hand_in_nothing() -> None:
    """Go on as if the share of each checkpoint were handed in."""

    def forget(upload: CheckpointUpload, share: CheckpointShare) -> None:
        pass

    CheckpointUpload.put = forget  # type: ignore[method-assign]


def enlarge_gradients() -> None:
    """Multiply them before they are reduced."""

    async def run(self: AllReduce, bucket: Bucket, step: int, gradient: torch.Tensor) -> float:
        if step >= FROM:
            gradient.mul_(1e6)
            self._alarm = AccusesNobody()
        return await honest_run(self, bucket, step, gradient)

    AllReduce.run = run  # type: ignore[method-assign]


def give_unlike_sums() -> None:
    """Send one receiver the negative of the own sum, with a seal of its own: each frame is right by itself, and has the
    norm that it should."""
    reductions: dict[int, tuple[AllReduce, str]] = {}

    async def run(self: AllReduce, bucket: Bucket, step: int, gradient: torch.Tensor) -> float:
        victim = next(holder for holder in bucket.holders if holder != self._me)
        reductions[id(self._exchange)] = self, victim
        return await honest_run(self, bucket, step, gradient)

    async def send(self: Exchange, peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
        if key.kind is Kind.REDUCED and key.step >= FROM:
            reduction, victim = reductions[id(self)]
            if peer == victim:
                sum_ = -from_bytes(payload).view(torch.float32)
                payload = to_bytes(sum_.view(torch.uint8))
                hashed = await reduction._seals.hash(payload)
                seal = reduction._seals.seal(key, hashed, sum_of_squares(sum_)).signature
        await honest_send(self, peer, key, payload, seal)

    AllReduce.run, Exchange.send = run, send  # type: ignore[method-assign]


LIES: dict[str, Callable[[], None]] = {
    "states": sign_other_states,
    "silence": hand_in_nothing,
    "gradients": enlarge_gradients,
    "sums": give_unlike_sums,
}


def main() -> None:
    """The command line of a node that lies."""
    LIES[os.environ.get("LIE", "states")]()
    node()


if __name__ == "__main__":
    main()
