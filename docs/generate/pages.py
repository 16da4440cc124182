"""All pages of the reference that are made from the code, by file name."""

from collections.abc import Callable
from pathlib import Path

from docs.generate.command_pages import coordinator_page, node_page
from docs.generate.file_page import file_page
from docs.generate.job_page import job_page
from docs.generate.message_page import message_page
from docs.generate.metrics_page import metrics_page
from docs.generate.timeout_page import timeout_page
from docs.generate.view_page import view_page

FOLDER = Path(__file__).parents[1] / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "dtfm-node.md": node_page,
    "dtfm-coordinator.md": coordinator_page,
    "job_file.md": job_page,
    "files.md": file_page,
    "messages.md": message_page,
    "metrics.md": metrics_page,
    "timeouts.md": timeout_page,
    "view.md": view_page,
}
