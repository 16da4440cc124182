"""Members at a coordinator's desk for tests: the clients of a swarm whose entrance is on this machine."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dtfm_coordinator.serve.entrance import ENTRANCE_LIMITS
from dtfm_coordinator.serve.member_desk import DESK_LIMITS, DeskLimits, MemberDesk
from dtfm_coordinator.serve.model_shelf import ModelShelf
from dtfm_node.control.desk_client import DeskClient
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.control.contribution_record import ContributionRecord
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity
from tests.harness.entrances import HOST, open_entrance
from tests.harness.membership import OWNER, coordinator_of, invite_of, member_of

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 10_000, "README.md": b"# tiny\n"}
"""Files of a model that only looks like one: 2.56 MB in three parts, and what is smaller."""


@dataclass
class OpenDesk:
    """An open entrance with a desk."""

    port: int
    admission: Admission
    """The coordinator's own."""

    def client(self, member: tuple[Identity, Admission] | None = None) -> DeskClient:
        """Make the client of a member; None: of a new one."""
        identity, admission = member or member_of(OWNER)
        return DeskClient(at(self.port), identity, admission)


def at(port: int):  # type: ignore[no-untyped-def]
    """Make an invite whose entrance is at `port`."""
    return invite_of(OWNER).model_copy(update={"entrance": f"{HOST}:{port}"})


@contextlib.asynccontextmanager
async def open_desk(
    record: Callable[[str], ContributionRecord | None] = lambda _: None,
    shelf: ModelShelf | None = None,
    limits: DeskLimits = DESK_LIMITS,
) -> AsyncIterator[OpenDesk]:
    """Open the entrance of `OWNER` with a desk."""
    admission, desk = coordinator_of(OWNER), MemberDesk(record, shelf, limits)
    quick = replace(ENTRANCE_LIMITS, silence=0)
    async with open_entrance(OWNER, admission=admission, desk=desk.serve, limits=quick) as (door, _):
        yield OpenDesk(door.port, admission)


def keep_checkpoint(state_dir: Path, step: int) -> None:
    """Keep a checkpoint of `step`, of which nobody looks at more than the manifest."""
    with CheckpointStore(state_dir / "checkpoints").draft(step) as draft:
        draft.add("stage-0.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
        file, tensors = draft.describe("stage-0.safetensors")
        draft.commit(Manifest(job="tiny", config={}, step=step, plan_version=1, files=(file,), tensors=tensors))


class Writer:
    """Writer of models that only look like some; counts them."""

    def __init__(self, fault: str = "") -> None:
        self.steps: list[int] = []
        self.fault = fault

    async def __call__(self, state_dir: Path, step: int, folder: Path) -> None:
        assert CheckpointStore(state_dir / "checkpoints", sweep=False).whole(step).step == step
        self.steps.append(step)
        if self.fault:
            raise UserError(self.fault)
        folder.mkdir()
        for name, data in FILES.items():
            (folder / name).write_bytes(data)
        (folder / "run.py").write_text("no part of a model")
