"""State that a new plan goes on from, and who gives it, decided from what peers hold. Pure."""

from collections.abc import Collection, Iterable, Mapping

from dtfm_coordinator.plan_change.judged_holdings import Copy
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.plan import Plan, Resume, Source


def resume_from(copies: Iterable[Copy], kept: Mapping[str, Iterable[Mark]], layers: int, chain: Chain) -> Resume:
    """Return the newest state of which some peer has each layer; the initial weights if there is none.

    A step that any peer has applied was final. Those who hold its reduced gradients, but have not heard, apply them:
    whoever votes holds them until a later step begins, and none begins before all have voted. A step that nobody who
    answers has applied is run again, also where one who is gone may have applied it: he is not in the new plan with
    that state, and finds that his is another one when he returns.

    Args:
        copies: what peers have that can give any, each after its promise to act under no earlier plan (`judge`).
        kept: whole checkpoints, by the id of the coordinator that keeps them.
        layers: number of layers of the model.
        chain: that of the newest plan that the next one follows.
    """
    found = list(copies)
    finals = {copy.mark: copy.commit for copy in found if copy.commit is not None}
    if chain.commit is not None:
        finals[chain.began] = chain.commit
    found = [copy for copy in found if copy.mark in finals or not copy.is_prepared]
    for who, marks in kept.items():
        found += [Copy(who, mark, (0, layers)) for mark in marks if chain.has(mark) or not chain.reaches(mark)]
    for mark in sorted({copy.mark for copy in found}, key=lambda mark: mark.order, reverse=True):
        of_it = [copy for copy in found if copy.mark == mark]
        if _cover([copy.layers for copy in of_it], layers):
            holders: dict[str, tuple[LayerRange, ...]] = {}
            for copy in of_it:
                if copy.layers not in holders.get(copy.peer, ()):
                    holders[copy.peer] = (*holders.get(copy.peer, ()), copy.layers)
            sources = tuple(Source(peer=peer, layers=spans) for peer, spans in holders.items())
            # The commit goes along also where all hold the state: the next plan may have to hand it on.
            return Resume(mark=mark, commit=finals.get(mark), sources=sources)
    return Resume()


def source_of(resume: Resume, copies: Collection[Copy]) -> str:
    """Return from where a plan's first state comes, in a word: "start", "replicas", "snapshots" or "checkpoint"."""
    if not resume.sources:
        return "start"
    layers = max(high for source in resume.sources for _, high in source.layers)
    if _cover([copy.layers for copy in copies if copy.live and copy.mark == resume.mark], layers):
        return "replicas"
    peers = {copy.peer for copy in copies}
    on_disk = [span for source in resume.sources if source.peer in peers for span in source.layers]
    return "snapshots" if _cover(on_disk, layers) else "checkpoint"


def safe_mark(peers_copies: Iterable[Copy], kept: Iterable[Mark], layers: int, copies: int = 2) -> Mark:
    """Return the newest state that the loss of any one peer cannot take away.

    Every layer of it lies on the disks of `copies` peers, or the coordinator has kept it.
    """
    safe = max([Mark(), *kept], key=lambda mark: mark.order)
    on_disk: dict[Mark, list[tuple[str, LayerRange]]] = {}
    for copy in peers_copies:
        if not copy.live and copy.mark.order > safe.order:
            on_disk.setdefault(copy.mark, []).append((copy.peer, copy.layers))
    for mark in sorted(on_disk, key=lambda mark: mark.order, reverse=True):
        parts = on_disk[mark]
        if len({peer for peer, _ in parts}) >= copies and all(
            len({peer for peer, (low, high) in parts if low <= layer < high}) >= copies for layer in range(layers)
        ):
            return mark
    return safe


def _cover(spans: Iterable[LayerRange], layers: int) -> bool:
    """Whether the spans, each `[first, end)`, leave none of `layers` layers out."""
    reached = 0
    for low, high in sorted(spans):
        if low > reached:
            return False
        reached = max(reached, high)
    return reached >= layers


def shadows_of(plan: Plan) -> tuple[str | None, ...]:
    """Return the peer that keeps copies for each stage: for those that one peer alone serves, idle peers in turn, else
    peers of other stages; None for the others."""
    alone = [stage for stage in range(len(plan.stages)) if len(plan.replicas(stage)) == 1]
    found: dict[int, str] = {}
    for turn, stage in enumerate(alone):
        others = plan.idle or tuple(peer for peer in plan.peers if plan.stage_of(peer) != stage)
        if others:
            found[stage] = others[turn % len(others)]
    return tuple(found.get(stage) for stage in range(len(plan.stages))) if found else ()
