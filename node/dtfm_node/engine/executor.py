"""Runs what a schedule says: compute on its own thread, receives posted ahead, sends off that thread."""

import torch

from dtfm_node.engine.allreduce import Compute
from dtfm_node.engine.exchange import Exchange, Received
from dtfm_node.engine.stage_state import StageState
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.shards import TokenReader
from dtfm_protocol.frames import Key, Kind
from dtfm_protocol.plan import Plan
from dtfm_protocol.schedule import actions_of


class Executor:
    """Computes one peer's part of steps and evaluations."""

    def __init__(
        self,
        plan: Plan,
        me: str,
        state: StageState,
        batches: Batches,
        tokens: TokenReader | None,
        exchange: Exchange,
        compute: Compute,
    ) -> None:
        self._plan, self._state, self._batches, self._tokens = plan, state, batches, tokens
        self._exchange, self._compute = exchange, compute
        self._actions = actions_of(plan, me)
        self._me, self._stage = me, state.index

    async def run_step(self, step: int) -> None:
        """Forwards and backwards of all micro-batches; gradients end up in the state's buckets.

        Raises:
            PeerLost: a peer on a route vanished.
        """
        await self._compute(self._state.begin_step)
        for action in self._actions:
            if action.kind == "forward":
                await self._forward(step, action.micro_batch)
            else:
                await self._backward(step, action.micro_batch)

    async def _forward(self, step: int, index: int) -> None:
        state, route = self._state, self._plan.routes[index]
        inputs, targets = self._read(step, index)
        value: torch.Tensor | Received | None = inputs
        if not state.is_first:
            value = await self._exchange.receive(route[self._stage - 1], Key(Kind.ACTIVATION, step, index))
        output = await self._compute(state.forward, index, value, targets)
        if output is not None:
            await self._exchange.send(route[self._stage + 1], Key(Kind.ACTIVATION, step, index), *output)

    async def _backward(self, step: int, index: int) -> None:
        state, route = self._state, self._plan.routes[index]
        value = None
        if not state.is_last:
            value = await self._exchange.receive(route[self._stage + 1], Key(Kind.GRADIENT, step, index))
        output = await self._compute(state.backward, index, value)
        if output is not None:
            await self._exchange.send(route[self._stage - 1], Key(Kind.GRADIENT, step, index), *output)

    async def evaluate(self, step: int) -> dict[int, float]:
        """Run the evaluation's micro-batches that lead through this peer; on the last stage their summed losses.

        Raises:
            PeerLost: a peer on a route vanished.
        """
        losses: dict[int, float] = {}
        for index in range(self._batches.evaluation_micro_batches):
            route = self._plan.routes[index % len(self._plan.routes)]
            if route[self._stage] != self._me:
                continue
            inputs, targets = self._read_evaluation(index)
            value: torch.Tensor | Received | None = inputs
            if not self._state.is_first:
                value = await self._exchange.receive(route[self._stage - 1], Key(Kind.EVALUATION, step, index))
            batch = self._batches.evaluation_batch_sizes[index]
            output = await self._compute(self._state.evaluate, value, targets, batch)
            if isinstance(output, float):
                losses[index] = output
            else:
                await self._exchange.send(route[self._stage + 1], Key(Kind.EVALUATION, step, index), *output)
        return losses

    def _read(self, step: int, index: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Inputs for the first stage and targets for the last, int64 [micro_batch, sequence_length]."""
        if self._tokens is None:
            return None, None
        return self._split(torch.from_numpy(self._batches.micro_batch(step, index, self._tokens.read)))

    def _read_evaluation(self, index: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self._tokens is None:
            return None, None
        return self._split(torch.from_numpy(self._batches.evaluation_micro_batch(index, self._tokens.read)))

    def _split(self, window: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        inputs = window[:, :-1] if self._state.is_first else None
        targets = window[:, 1:] if self._state.is_last else None
        return inputs, targets
