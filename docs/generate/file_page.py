"""Page of the state folders: every file of coordinator and node."""

from docs.generate.markdown import code, page, paragraph, table
from docs.generate.message_page import schema_section
from docs.generate.state_files import COORDINATOR_FILES, NODE_FILES, SOLO_FILES, StateFile

ABOUT = """\
What the programs keep on the disk. A state folder is closed to other users. What is secret is for nobody else (an
invite: for those whom you invite). All else may be read and copied while a program runs; edit nothing but the config
file. Files that end in `.jsonl` have one JSON object a line, oldest first; times in them are Unix seconds."""
COORDINATOR = """\
The folder that `serve --state-dir` names. [Which of these to back up](../how-to/back_up.md) is said elsewhere."""
NODE = """\
`~/.local/share/dtfm/nodes/SWARM` on Linux, or what `--state-dir` names. `dtfm-node remove` deletes these files."""

SOLO = """\
The folder that `dtfm-node solo --state-dir` names. `dtfm-coordinator swarm --state-dir` makes the coordinator's files,
and those of each node in `nodes`."""


def file_page() -> str:
    """Return the page."""
    files = (*COORDINATOR_FILES, *NODE_FILES)
    return page(
        "Files",
        paragraph(ABOUT),
        f"## Of the coordinator\n{paragraph(COORDINATOR)}",
        _table(COORDINATOR_FILES),
        f"## Of a node\n{paragraph(NODE)}",
        _table(NODE_FILES),
        f"## Of a job trained alone\n{paragraph(SOLO)}",
        _table(SOLO_FILES),
        "## Fields",
        *(_fields(one) for one in files if one.fields),
    )


def _table(files: tuple[StateFile, ...]) -> str:
    rows = ([code(one.path), "yes" if one.is_secret else "", one.text] for one in files)
    return table(["file", "secret", "what it is"], rows)


def _fields(one: StateFile) -> str:
    return "\n\n".join([f"`{one.path}`:", *(schema_section(kind) for kind in one.fields)])
