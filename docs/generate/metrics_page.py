"""Page of all figures: those of `/metrics`, and the columns of the files of metrics."""

import re
from collections.abc import Iterator

from docs.generate.docstrings import summary
from docs.generate.full_overview import OVERVIEW
from docs.generate.markdown import code, page, paragraph, table
from docs.generate.message_page import schema_table
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.records.member_records import MemberShare, PlanShares
from dtfm_coordinator.serve.web.metrics_text import metrics_text
from dtfm_protocol.job.step_metrics import SetMetrics, StepMetrics

ABOUT = """\
Where a run's figures are, for programs. People look at the [owner's page](../how-to/watch.md), which has all of them.
Losses are in nats a token, sizes in bytes, times in seconds."""
PROMETHEUS = """\
`dtfm-coordinator serve --web PORT` gives these in the text format of Prometheus. What is not known is left out.
[deploy/prometheus](../../deploy/README.md#prometheus-and-grafana) has a configuration, alerts and a dashboard."""


def metrics_page() -> str:
    """Return the page."""
    return page(
        "Metrics",
        paragraph(ABOUT),
        f"## `/metrics`\n{paragraph(PROMETHEUS)}",
        table(["figure", "labels", "meaning"], _figures(metrics_text(OVERVIEW))),
        f"## `metrics.jsonl`\n{_rows('A row for each step that counts', StepMetrics)}",
        f"Each of its `sets`: {summary(SetMetrics)}",
        schema_table(SetMetrics),
        f"## `members.jsonl`\n{_rows('A row for each plan', PlanShares)}",
        f"Each of its `members`, by peer id: {summary(MemberShare)}",
        schema_table(MemberShare),
        f"## `history.jsonl`\n{_rows('A row for each plan that began', PlanEvent)}",
    )


def _rows(what: str, schema: type) -> str:
    return (
        f"{paragraph(f'{what}, in the state folder of the coordinator. {summary(schema)}')}\n\n{schema_table(schema)}"
    )


def _figures(text: str) -> Iterator[list[str]]:
    """Yield each figure of the text format: its name, its labels, and its help."""
    for name, said in re.findall(r"^# HELP (\w+) (.+)$", text, flags=re.M):
        labels = re.search(rf"^{name}{{(.*)}} ", text, flags=re.M)
        found = re.findall(r'(\w+)="', labels[1]) if labels else []
        yield [code(name), ", ".join(map(code, found)), said]
