"""Weight gradients of matrices, added straight to their sums: at once, or later as an action of their own.

autograd computes the gradients of a matrix product's input and of its matrix in one go, and gives the matrix's a
tensor of its own that is then added to the sum. Here the module's product is a function of our own: its backward gives
autograd the input's gradient, and the matrix's goes by a product that accumulates into `.grad`, when it is asked for.
That saves a pass over memory, and lets a schedule put it off ("zero-bubble").
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from dtfm_protocol.model.base_forms import SCALE

Pending = tuple[nn.Parameter, nn.Parameter | None, torch.Tensor, torch.Tensor, bool]
"""Operands of a matrix's gradient: matrix, bias, the product's input, its output's gradient, and whether the matrix is
stored [in, out]."""


_WIDENED_VALUES = 1 << 22
"""Values of a matrix, about, that are widened to fp32 at a time, where it is kept in less: 16 MiB."""
SCALE_NAME = f"weight{SCALE}"
"""Name that a module has the scales of its matrix by, where that is kept in int8."""


def is_product(module: nn.Module) -> bool:
    """Whether a module is a plain product with a matrix."""
    return type(module) in (nn.Linear, Conv1D)  # not subclasses: they may compute something else


class WeightGradients:
    """Matrix products of one stage, with control over when their gradients are computed. `.grad` of every parameter
    must exist, but for matrices that take no gradient: their bias takes none either."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._deferred: list[Pending] | None = None
        self._low: dict[int, torch.Tensor] = {}
        """Matrices in autocast's dtype, by `id`: cast once a step, not once a micro-batch."""
        self.room = WideningRoom()
        for module in modules:
            if is_product(module):
                module.forward = _forward(self, module)

    def forget(self) -> None:
        """Forget the cast matrices: the parameters have changed."""
        self._low.clear()

    def defer(self) -> None:
        """Begin to keep the operands of matrices' gradients instead of computing them."""
        self._deferred = []

    def take_deferred(self) -> list[Pending]:
        """Return the operands kept since `defer`, in the order of the backward; from now on gradients are computed at
        once."""
        pending, self._deferred = self._deferred or [], None
        return pending

    def lowered(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix in `dtype`, from memory where it was cast before; or as it is kept, if that is no more."""
        if weight.dtype.itemsize <= dtype.itemsize:
            return weight
        if id(weight) not in self._low:
            self._low[id(weight)] = weight.detach().to(dtype)
        return self._low[id(weight)]

    def put(self, pending: Pending) -> None:
        """Compute the gradients now, or keep their operands after `defer`."""
        if self._deferred is None:
            accumulate(pending)
        else:
            self._deferred.append(pending)


@torch.no_grad()
def accumulate(pending: Pending) -> None:
    """Add to the gradients of a matrix and its bias what the operands `pending` give."""
    weight, bias, x, gradient, transposed = pending
    x, gradient = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    left, right = (x.t(), gradient) if transposed else (gradient.t(), x)
    assert weight.grad is not None
    if left.dtype == weight.grad.dtype:
        weight.grad.addmm_(left, right)
    else:
        weight.grad.add_(left @ right)
    if bias is not None:
        assert bias.grad is not None
        bias.grad.add_(gradient.sum(0))


def _forward(matrices: WeightGradients, module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    transposed = isinstance(module, Conv1D)

    def forward(x: torch.Tensor) -> torch.Tensor:
        weight, bias, scale = module.weight, module.bias, getattr(module, SCALE_NAME, None)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, low = x.to(dtype), matrices.lowered(weight, dtype)
        else:
            low = weight.detach()
        if torch.is_grad_enabled():
            y: torch.Tensor = _Product.apply(x, low, scale, weight, bias, transposed, matrices)  # type: ignore[no-untyped-call]
            return y
        return _product(x, low, scale, bias, transposed, matrices.room)

    return forward


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    transposed: bool,
    room: "WideningRoom",
) -> torch.Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        if weight.dtype == x.dtype:
            return functional.linear(x, weight.t() if transposed else weight, bias)
        found = [
            functional.linear(x, part, None if bias is None else bias[first:end])
            for first, end, part in kept_rows(weight, scale, x.dtype, transposed, room)
        ]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


class WideningRoom:
    """The room in which runs of a matrix's rows are widened, one after the other: the same memory all the time, as
    runs that are allocated anew leave holes in the heap, which nothing else fits in."""

    def __init__(self) -> None:
        self._tensors: dict[torch.dtype, torch.Tensor] = {}

    def of(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor as `rows`, in `dtype`, whose values do not matter; the one before it is no more."""
        held = self._tensors.get(dtype)
        if held is None or held.numel() < rows.numel() or held.device != rows.device:
            self._tensors.pop(dtype, None)
            held = self._tensors[dtype] = torch.empty(rows.numel(), dtype=dtype, device=rows.device)
        # Laid out as the rows are, which may be columns of what is kept: a copy across is slow.
        across = rows.stride(0) == 1 and rows.shape[1] > 1
        shape = (rows.shape[1], rows.shape[0]) if across else tuple(rows.shape)
        found = held[: rows.numel()].view(shape)
        return found.t() if across else found


def kept_rows(
    weight: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype, transposed: bool, room: WideningRoom
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield a matrix that is kept in another type in `dtype`, as the rows `[first, end)` of [out, in], each in `room`
    until the next is asked for. Integers become fp32, times the scale of their row, and that `dtype`, one after the
    other (`base_forms`)."""
    rows = weight.t() if transposed else weight
    scales = scale if scale is None or not transposed else scale.t()
    each = max(1, _WIDENED_VALUES // rows.shape[1])
    for first in range(0, len(rows), each):
        end = min(first + each, len(rows))
        part = rows[first:end]
        if scales is not None:
            part = room.of(part, torch.float32).copy_(part).mul_(scales[first:end])
        yield first, end, part if part.dtype == dtype else room.of(part, dtype).copy_(part)


class _Product(torch.autograd.Function):
    """Product of x and a matrix, whose gradient `WeightGradients` takes care of."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        low: torch.Tensor,
        scale: torch.Tensor | None,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        transposed: bool,
        matrices: WeightGradients,
    ) -> torch.Tensor:
        if weight.requires_grad:
            ctx.save_for_backward(x)
        # Neither copied nor kept alive by the graph: parameters change after the step only.
        ctx.low, ctx.scale, ctx.weight, ctx.bias = low, scale, weight, bias
        ctx.transposed, ctx.matrices = transposed, matrices
        return _product(x, low, scale, bias, transposed, matrices.room)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, *tuple[None, ...]]:
        (gradient,) = gradients
        if ctx.weight.requires_grad:
            (x,) = ctx.saved_tensors
            ctx.matrices.put((ctx.weight, ctx.bias, x, gradient, ctx.transposed))
        towards_input = None
        if ctx.needs_input_grad[0] and ctx.low.dtype == gradient.dtype:
            towards_input = gradient @ (ctx.low.t() if ctx.transposed else ctx.low)
        elif ctx.needs_input_grad[0]:
            kept = kept_rows(ctx.low, ctx.scale, gradient.dtype, ctx.transposed, ctx.matrices.room)
            for first, end, part in kept:
                product = gradient[..., first:end] @ part
                towards_input = product if towards_input is None else towards_input.add_(product)
        return towards_input, None, None, None, None, None, None
