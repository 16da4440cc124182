"""An overview of a run of which everything is known: with it the coordinator says all the figures that there are."""

from dtfm_coordinator.swarm.overview.overview import (
    CheckpointView,
    Figures,
    Health,
    MemberView,
    Overview,
    PlanView,
    Progress,
    Storage,
)
from dtfm_protocol.job.step_metrics import SetMetrics

MEMBER = MemberView(
    name="Ann's PC", device="cpu", role="trains", does="", level="good", stage=0, layers=(1, 4), micro_batches=1,
    step=1, tokens=1.0, share=1.0, seconds=1.0, seen_at=None, sent_bytes=1, received_bytes=1, version="1",
    up_gbps=1.0, down_gbps=1.0, line_spread=3.0,
)  # fmt: skip
OVERVIEW = Overview(
    at=1.0,
    swarm="swarm",
    job="job",
    phase="training",
    text="",
    health=Health(level="good"),
    progress=Progress(step=1, steps=2, tokens=1, step_seconds=1.0, seconds_left=1.0, ends_at=2.0),
    figures=Figures(
        loss=1.0, eval_loss=1.0, eval_step=1, learning_rate=1.0, grad_norm=1.0, tokens_per_second=1.0, seconds=1.0,
        predicted_seconds=1.0, pace="", sent_bytes=1,
        sets=(SetMetrics(name="set", loss=1.0, perplexity=1.0, accuracy=1.0, tokens=1),),
    ),
    plan=PlanView(version=1, reason="", layers=4, micro_batches=1, stages=(), pipelines=(), hops=()),
    members={"peer": MEMBER},
    news={},
    storage=Storage(checkpoints=(CheckpointView(step=1, at=1.0, size=1),), free_bytes=1),
)  # fmt: skip
