"""The owner decides who is in a swarm of real processes: invites that are used up, the list of members, and a ban."""

import json
import signal

import pytest

from tests.harness.daemon import Daemon
from tests.harness.swarm import Swarm

pytestmark = pytest.mark.process


async def test_an_invite_lets_so_many_in_and_a_banned_member_loses_the_swarm_while_the_others_train_on(
    swarm: Swarm,
) -> None:
    """The banned one serves a stage; a spare takes its place, and neither its credential nor its key lets it back."""
    swarm.slow_down()
    state = swarm.folder / "coordinator"
    coordinator = await swarm.serve(
        swarm.job(steps=4000, checkpoint=5), "--plan", swarm.plan([[0, 2], [2, 4]], ["ab"] * 8), "--min-nodes", "2"
    )
    first = await swarm.join(name="node-first")
    second_invite = await _invite(swarm)
    invited = await swarm.join(name="node-invited", invite=second_invite)
    await swarm.until(lambda: swarm.step >= 5, "the first steps are done")
    trained = set(swarm.layout()["pipelines"][0])

    third = swarm.folder / "node-third"
    code, said = await swarm.run("dtfm-node", "join", "--yes", second_invite, "--state-dir", third)
    assert code == 2
    assert "the invite was for 1 machine, which has entered" in said
    spare = await swarm.join(name="node-spare", invite=await _invite(swarm))
    await swarm.until(lambda: swarm.statuses().get(swarm.peer_of(spare)) == "idle", "there is a spare")

    code, said = await swarm.run("dtfm-coordinator", "members", "--state-dir", state, "--json")
    assert code == 0, said
    members = {one["peer"] for one in json.loads(said)["members"]}
    assert members == {swarm.peer_of(node) for node in (first, invited, spare)}
    assert trained == {swarm.peer_of(first), swarm.peer_of(invited)}

    banned = swarm.peer_of(invited)
    code, said = await swarm.run("dtfm-coordinator", "ban", banned[-8:], "--state-dir", state)
    assert (code, said.strip()) == (0, f"{banned} is banned")
    await swarm.until(lambda: len(swarm.events()) > 1, "the others go on without it")
    begun = swarm.events()[-1].step
    await swarm.until(lambda: swarm.step > begun + 10, "they train")
    assert set(swarm.layout()["pipelines"][0]) == {swarm.peer_of(first), swarm.peer_of(spare)}
    why = "the owner has banned this machine, or all that came with its invite"
    assert await invited.exit_code() == 2
    assert invited.said().count(why) == 1
    for times in (2, 3):
        back = await swarm.join("--timeout", "3", name="node-invited", invite=f"@{state / 'invite'}")
        assert await back.exit_code() == 2
        assert back.said().count(why) == times, "it is the same log"
        (invited.folder / "credential.json").unlink(missing_ok=True)  # it has its key alone, and asks again
    assert first.alive
    assert spare.alive
    assert coordinator.alive


async def test_an_invite_that_is_taken_back_and_a_member_that_is_kicked_which_comes_back(swarm: Swarm) -> None:
    """Training goes on with a spare in its place, and the one that was kicked is one when it is started again."""
    swarm.slow_down()
    state = swarm.folder / "coordinator"
    await swarm.serve(
        swarm.job(steps=4000, checkpoint=5), "--plan", swarm.plan([[0, 2], [2, 4]], ["ab"] * 8), "--min-nodes", "2"
    )
    first, second = [await swarm.join(name=f"node-{name}") for name in ("first", "second")]
    await swarm.until(lambda: swarm.step >= 1, "these two train")
    spare = await swarm.join(name="node-spare", invite=await _invite(swarm))
    await swarm.until(lambda: swarm.step >= 5 and _is_spare(swarm, spare), "the first steps are done, with a spare")

    code, said = await swarm.run("dtfm-coordinator", "members", "--state-dir", state, "--json")
    assert code == 0, said
    token = next(one["token"] for one in json.loads(said)["members"] if one["peer"] == swarm.peer_of(first))
    code, said = await swarm.run("dtfm-coordinator", "revoke", token, "--state-dir", state)
    assert code == 0, said
    code, said = await swarm.run(
        "dtfm-node", "join", "--yes", f"@{state / 'invite'}", "--state-dir", swarm.folder / "node-new"
    )
    assert code == 2
    assert "the invite was taken back" in said

    kicked = swarm.serving(-1)[0]
    code, said = await swarm.run("dtfm-coordinator", "kick", swarm.peer_of(kicked)[-8:], "--state-dir", state)
    assert code == 0, said
    await swarm.until(lambda: len(swarm.events()) > 1, "the others go on without it")
    begun = swarm.events()[-1].step
    await swarm.until(lambda: swarm.step > begun + 10, "they train")
    stays = second if kicked is first else first
    assert set(swarm.layout()["pipelines"][0]) == {swarm.peer_of(stays), swarm.peer_of(spare)}
    assert await kicked.exit_code() == 0, "whoever starts nodes that fail leaves it alone"
    assert "The owner has sent this machine away; `dtfm-node join` comes back." in kicked.said()

    await kicked.start()
    await swarm.until(lambda: _is_spare(swarm, kicked), "it is a member again")


def _is_spare(swarm: Swarm, node: Daemon) -> bool:
    return swarm.statuses().get(swarm.peer_of(node)) == "idle"


async def _invite(swarm: Swarm) -> str:
    """Make an invite for one node."""
    code, said = await swarm.run(
        "dtfm-coordinator", "invite", "--uses", "1", "--state-dir", swarm.folder / "coordinator"
    )
    assert code == 0, said
    return said.strip()


async def test_the_coordinators_key_is_replaced_while_the_swarm_trains_and_everybody_follows(swarm: Swarm) -> None:
    """One node hears of it at once, one was away meanwhile, and one enters with an invite from before."""
    swarm.slow_down()
    state = swarm.folder / "coordinator"
    await swarm.serve(
        swarm.job(steps=4000, checkpoint=5), "--plan", swarm.plan([[0, 2], [2, 4]], ["ab"] * 8), "--min-nodes", "2"
    )
    first, second = [await swarm.join(name=f"node-{name}") for name in ("first", "second")]
    await swarm.until(lambda: swarm.step >= 1, "these two train")
    away = await swarm.join(name="node-away")
    await swarm.until(lambda: _is_spare(swarm, away) and swarm.step >= 5, "the first steps are done")
    away.signal(signal.SIGINT)
    await away.exit_code()
    before, old_invite = swarm.layout()["author"], (state / "invite").read_text().strip()
    handed_in = max(swarm.checkpoints(), default=0)

    code, said = await swarm.run("dtfm-coordinator", "rotate", "--state-dir", state)
    assert code == 0, said
    await swarm.until(lambda: len(swarm.events()) > 1, "a plan of the new key has begun")
    assert swarm.layout()["author"] != before
    begun = swarm.events()[-1]
    await swarm.until(lambda: swarm.step > begun.step + 10, "they train under it")
    await swarm.until(lambda: max(swarm.checkpoints()) > max(handed_in, begun.step), "they hand in to the new key")
    assert begun.why == "the coordinator's key was replaced"
    assert begun.repeated == 0
    assert swarm.layout()["author"] in said
    assert (state / "invite").read_text().strip() != old_invite

    await away.start()
    late = await swarm.join(name="node-late", invite=old_invite)
    await swarm.until(lambda: all(_is_spare(swarm, node) for node in (away, late)), "both are spares")
    assert first.alive
    assert second.alive
