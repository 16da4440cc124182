"""Options of `dtfm-coordinator serve`: what the owner decides beyond the job."""

from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator.serve.boards.board_feed import BoardOptions
from dtfm_coordinator.serve.notices.notice_sender import NoticeOptions
from dtfm_coordinator.serve.web.page_address import PageOptions
from dtfm_protocol.control.mqtt import split_broker_url


@dataclass(frozen=True)
class ServeOptions:
    """Options of `dtfm-coordinator serve`: what the owner decides beyond the job."""

    listen: str = "0.0.0.0"
    port: int = 7700
    announce: str | None = None
    broker: str = "embedded"
    broker_ca: Path | None = None
    plan: Path | None = None
    min_nodes: int | None = None
    exit_when_done: bool = False
    seed: int = 0
    without_quorum: bool = False
    cards: tuple[str, ...] = ()
    """Cards (`StandbyCard`) of the coordinators that may take over."""
    standby: str | None = None
    """Invite of the swarm that this coordinator may take over; None: it has a swarm of its own."""
    lan: bool = False
    """Whether addresses inside this machine's own network are dialled when peers announce them."""
    web: PageOptions | None = None
    """Where and how the owner's page is served; None: it is not."""
    notices: NoticeOptions | None = None
    """Where the owner is told what happens; None: nowhere."""
    boards: BoardOptions = BoardOptions()  # noqa: RUF009 - it is frozen
    """Boards to which the metrics are written."""

    @property
    def external_broker(self) -> str | None:
        """Address of an external broker; None: the embedded one is used.

        Raises:
            UserError: `broker` is no address.
        """
        if self.broker == "embedded":
            return None
        split_broker_url(self.broker)
        return self.broker
