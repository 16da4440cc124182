"""What lies in the state folders, as a table. A test holds it to the file names in the code, and to a real run."""

import re
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from dtfm_coordinator.faults.accusations import AccusationRecord
from dtfm_coordinator.membership import membership_ledger
from dtfm_coordinator.owner import owner_wishes
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_coordinator.serve.web.page_links import PageKeys
from dtfm_protocol.job.amendment import Amendment
from dtfm_protocol.plan.peer_state import Promise
from dtfm_protocol.plan.state_vote import StateVote


class StateFile(NamedTuple):
    """A file of a state folder, or those of one kind."""

    path: str
    """Path in the folder; a word in capitals stands for what differs."""
    text: str
    """What it is, and what for."""
    fields: tuple[type[BaseModel], ...] = ()
    """Schemas of what is in it, where that is not said elsewhere."""
    is_secret: bool = False
    """Whether it must not leave the machine."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Pattern of all paths that it stands for."""
        return re.compile(re.sub(r"\b[A-Z]{3,}\b", "[^/]+", re.escape(self.path)))


def unlisted(folder: Path, files: tuple[StateFile, ...]) -> list[str]:
    """Return the paths of files in a state folder that are not in its list; links and empty folders do not count."""
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in paths if not any(one.pattern.fullmatch(path) for one in files))


METRICS = "[Its columns](metrics.md)."
NUMBERS = (
    StateFile("lock", "Held by the program that runs with the folder: its process id."),
    StateFile("counter", "Number of this program's newest message, so that none is said twice."),
    StateFile("heard.json", "Numbers of the newest messages of others, so that old ones tell nothing."),
)
SOLO_FILES = (
    StateFile("metrics.jsonl", f"A row for each step. {METRICS} What a swarm alone knows is null."),
    StateFile("checkpoints/step-NUMBER/NAME", "A checkpoint, as a coordinator keeps it; `export` reads it."),
    StateFile(
        "tokens/HASH.tokens",
        "A piece of the training text as token numbers, or a list of pieces (a chapter), named by its SHA-256.",
    ),
    StateFile("base/HASH.safetensors", "A piece of the weights that the job begins with, named by its SHA-256."),
    StateFile("tokenizer/NAME", "The tokenizer, as `tokenizers` and `transformers` load it."),
    StateFile("job.json", "The job with the model's whole config, and the text as hashes."),
    StateFile("prepared", "From what the tokens were made, so that they are made once."),
    StateFile("preparing/preparing.jsonl", "While tokens are made: how far that is, to go on there after a break."),
    StateFile("preparing/tokenizer.json", "Beside it, the tokenizer where it was trained on the text."),
    StateFile("preparing/state-HASH", "Beside it, what waits for room in a sequence; the newest two."),
    StateFile("lock", "Held by the program that runs with the folder: its process id."),
)
COORDINATOR_FILES = (
    StateFile("invite", "The invite that `serve` prints. Whoever has it can enter.", is_secret=True),
    StateFile("metrics.jsonl", f"A row for each step that counts. {METRICS}"),
    StateFile("members.jsonl", f"A row for each plan: who has which layers and how much of a step. {METRICS}"),
    StateFile("history.jsonl", f"A row for each plan that began: why, when, and from which state. {METRICS}"),
    StateFile("status.json", "What `dtfm-coordinator status --json` prints."),
    StateFile(
        "checkpoints/step-NUMBER/manifest.json",
        "Table of contents of a checkpoint: every tensor's place, size and hash, the model's config, the step.",
    ),
    StateFile("checkpoints/step-NUMBER/NAME.safetensors", "A stage's weights and the optimizer's moments."),
    StateFile("checkpoints/keep-NUMBER", "Empty: the checkpoint of this step is kept for good."),
    StateFile("shared-model/PLACE/NAME", "The newest model, written out for members that fetch it (`[sharing]`)."),
    StateFile("job.json", "The job as nodes get it: the model's whole config, and the text as hashes."),
    StateFile("served.json", "The job file that was served last: what differs from it is an edit."),
    StateFile(
        "amendments.jsonl",
        "What was changed while the run trained; `dtfm-node solo --amendments` replays it.",
        (Amendment,),
    ),
    StateFile(
        "wishes.jsonl",
        "What the owner has asked for (`pause`, `set` and the like), and what has become of it.",
        (
            owner_wishes.Paused,
            owner_wishes.Resumed,
            owner_wishes.CheckpointWanted,
            owner_wishes.PlanWanted,
            owner_wishes.FinishWanted,
            owner_wishes.Amended,
            owner_wishes.WishAnswer,
        ),
    ),
    StateFile(
        "membership.jsonl",
        "Invites, who has entered with which, who is banned, and who is not any more.",
        (
            membership_ledger.Invited,
            membership_ledger.Redeemed,
            membership_ledger.Revoked,
            membership_ledger.Banned,
            membership_ledger.Ruled,
            membership_ledger.Kicked,
            membership_ledger.Trusted,
        ),
    ),
    StateFile(
        "tokens/HASH.tokens",
        "A piece of the training text as token numbers, or a list of pieces (a chapter), named by its SHA-256.",
    ),
    StateFile("base/HASH.safetensors", "A piece of the weights that the job begins with, named by its SHA-256."),
    StateFile("tokenizer/NAME", "The tokenizer, as `tokenizers` and `transformers` load it."),
    StateFile("plan.json", "The plan that was made last ([its fields](messages.md#plan))."),
    StateFile("view.json", "Devices and links ([keys](view.md)) as they are known now, later than that plan."),
    StateFile("epoch.json", "Which plans are over, and what nodes have promised.", (PlanRecord,)),
    StateFile("state_votes.jsonl", "What nodes have signed of the states that they hold.", (StateVote,)),
    StateFile(
        "accusations.json",
        "Which nodes have accused or contradicted each other, and who has provably lied.",
        (AccusationRecord,),
    ),
    StateFile("demand.json", "Memory and work of the model's layers, worked out once."),
    StateFile("peers.json", "Addresses of members, by which a coordinator that was restarted finds them."),
    StateFile("ports.json", "The ports that were used last."),
    StateFile("swarm", "The swarm's id."),
    StateFile("prepared", "From what the tokens were made, so that they are made once."),
    StateFile("preparing/preparing.jsonl", "While tokens are made: how far that is, to go on there after a break."),
    StateFile("preparing/tokenizer.json", "Beside it, the tokenizer where it was trained on the text."),
    StateFile("preparing/state-HASH", "Beside it, what waits for room in a sequence; the newest two."),
    StateFile("key", "The coordinator's key: who has it is the coordinator.", is_secret=True),
    StateFile("key.next", "The key that takes its place, after `rotate`.", is_secret=True),
    StateFile("authority.crt", "The key's certificate, which says whose place it has taken."),
    StateFile(
        "page-links.json", "Keys of the links to the owner's page. Who has one is let in.", (PageKeys,), is_secret=True
    ),
    StateFile("page-url", "Where the page was served last."),
    StateFile("page-cert.pem", "The page's own certificate."),
    StateFile("page-key.pem", "The key of that certificate.", is_secret=True),
    StateFile("broker/members.crt", "With a broker of your own: the authorities whose members it lets in."),
    StateFile("broker/acl", "With a broker of your own: who may read and write what."),
    *NUMBERS,
)
NODE_FILES = (
    StateFile(
        "dtfm-node.toml", "Options of `dtfm-node join` that hold: those that were given, and those that you fill in."
    ),
    StateFile("status.json", "What `dtfm-node status --json` prints."),
    StateFile("node.log", "The log of a node that runs as a service; older parts are `node.log.1` to `node.log.4`."),
    StateFile(
        "tokens/HASH.tokens",
        "A piece of the training text as token numbers, or a list of pieces (a chapter), named by its SHA-256.",
    ),
    StateFile("base/HASH.safetensors", "A piece of the weights that the job begins with, named by its SHA-256."),
    StateFile("snapshots/NAME.safetensors", "A part of the model as it was after a step, its own or another's."),
    StateFile("snapshots/NAME.json", "What is in it, whose it is, and the votes on it."),
    StateFile("devices.json", "With several devices: on which of them the last `join` ran a node."),
    StateFile("devices/DEVICE/FILE", "With several devices: the files of each one's node, as in this list."),
    StateFile("promise.json", "What the node has promised the coordinator: it acts under no older plan.", (Promise,)),
    StateFile("plan.json", "The plan that it took last ([its fields](messages.md#plan))."),
    StateFile("pause.json", "Until when it pauses, after `dtfm-node pause`."),
    StateFile("consent.json", "That its person has agreed to take part, and in which swarm."),
    StateFile(
        "contribution.json",
        "What it has contributed, signed by the coordinator. `remove` keeps it, in the folder `contributions`.",
    ),
    StateFile("credential.json", "Its membership, signed by the coordinator."),
    StateFile("invite", "The invite with which it joined; `join` without one reads it.", is_secret=True),
    StateFile("key", "The node's key: by it the swarm knows it again.", is_secret=True),
    StateFile("windows-task.xml", "What `service install` writes on Windows; untested."),
    *NUMBERS,
)
