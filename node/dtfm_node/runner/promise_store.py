"""Store of this node's promises: what it has promised, and the plan that it took last; on disk before it is said."""

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from dtfm_node.control.latest_plan import HeardCall
from dtfm_node.control.reporter import Reporter
from dtfm_node.runner.follower import Pledge
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.peer_state import Promise
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.state_dir import write_atomically


class PromiseStore:
    """Promise of a node and the plan that it took, which outlast its process.

    Raises:
        UserError: a file cannot be read; without it, this node might break its promise.
    """

    def __init__(
        self, promise_file: Path, holdings: Inventory, reporter: Reporter, heard: Callable[[], HeardCall]
    ) -> None:
        """Read what an earlier process has written.

        Args:
            heard: returns the newest call that was heard of.
        """
        self._promise_file, self._plan_file = promise_file, promise_file.with_name("plan.json")
        self._holdings, self._reporter, self._heard = holdings, reporter, heard
        self._promise = _read_promise(promise_file)
        self._taken = Plan.load(self._plan_file) if self._plan_file.exists() else None
        self._shown: Plan | None = None
        """Plan that reports show."""

    @property
    def pledge(self) -> Pledge:
        """Promise that is on the disk."""
        return Pledge(self._promise.version, self._promise.to, self._promise.accepted)

    def promise(self, pledge: Pledge) -> None:
        """Write a promise to the disk, which binds this and all later processes of this node.

        Raises:
            UserError: the disk is full; the promise before is the one that counts.
        """
        promise = Promise(version=pledge.version, to=pledge.to, accepted=pledge.accepted)
        write_atomically(self._promise_file, promise.model_dump_json(), lasting=True)
        self._promise = promise
        self.say_standing()

    def take(self, plan: Plan, pledge: Pledge) -> None:
        """Write `plan` to the disk, and the promise that goes with it.

        Raises:
            UserError: the disk is full; the promise before is the one that counts.
        """
        write_atomically(self._plan_file, plan.model_dump_json(), lasting=True)
        self._taken = plan
        self.promise(pledge)

    def say_standing(self) -> None:
        """Have the next report say what this node holds and has promised."""
        self._shown = self._to_be_shown()
        self._reporter.note(standing=self._holdings.standing(self._promise), taken=self._shown)

    def heard_call(self) -> None:
        """Have the next report show the plan that was taken last, or no more, where a new call tells that its
        coordinator may not know of it, or does."""
        if self._to_be_shown() is not self._shown:
            self.say_standing()

    def _to_be_shown(self) -> Plan | None:
        taken = self._taken
        return taken if taken is not None and self.pledge.shows_taken(taken.author, self._heard()) else None


def _read_promise(path: Path) -> Promise:
    if not path.exists():
        return Promise()
    try:
        return Promise.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"cannot read {path}: {error}; take another --state-dir, to join as a new peer") from None
