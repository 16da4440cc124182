"""The reference is what the code says: pages are made anew and compared, and none of the parts lacks its text."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.generate.command_pages import commands, parser
from docs.generate.job_page import job_keys
from docs.generate.message_page import field_meanings, schemas
from docs.generate.pages import FOLDER, PAGES
from docs.generate.state_files import COORDINATOR_FILES, NODE_FILES
from docs.generate.view_page import example, script_example

from dtfm_coordinator.main import app as coordinator
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.records.member_records import MemberShare, PlanShares
from dtfm_lab.emulation.world_script import WorldChange, WorldScript
from dtfm_node.main import app as node
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.view.view import LayerSeconds, LinkWay, NodeView, View

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"node_service.py", "compiled.py", "page_assets.py", "local_swarm.py", "libp2p_daemon.py"}
"""Modules that name files of other folders than the programs' state folders."""
OTHERS = {
    "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "tekken.json",  # of models
    "adapter_config.json",  # of adapters
    "state.json",  # of folders that `datasets` has written
    "live.safetensors", "weights.safetensors",  # names on the wire
    "dtfm-node",  # the program
    "contributions",  # beside all nodes' folders: records that stay when one is removed
    "offer.json",  # in the folder of a model that is being fetched
    "nodes",  # the nodes' folders of `dtfm-coordinator swarm`
}  # fmt: skip
"""File names in the code of which none lies in a state folder."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_the_code_says(name: str) -> None:
    """`python -m docs.generate` mends what this finds."""
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]()


def test_the_example_of_a_view_is_one_and_the_example_of_a_script_is_one() -> None:
    view = View.read(example(), "the example")
    assert view.ids == ("hamburg", "lyon", "osaka")
    assert WorldScript.read(tomllib.loads(script_example()), "the example").event[0].sender == "Tokyo"


def test_every_key_of_a_job_is_explained() -> None:
    assert [one.key for one in job_keys() if not one.text] == []


def test_every_field_of_a_message_or_file_is_explained() -> None:
    views = {NodeView, LayerSeconds, LinkWay, WorldChange}
    in_files = {kind for one in (*COORDINATOR_FILES, *NODE_FILES) for kind in one.fields}
    bare = [
        f"{kind.__name__}.{field}"
        for kind in {*schemas(), *in_files, *views, StepMetrics, PlanShares, MemberShare, PlanEvent}
        for field, text in field_meanings(kind).items()
        if not text
    ]
    assert bare == [], "say under the field, in the code, what it means"


@pytest.mark.parametrize(("name", "app"), [("dtfm-node", node), ("dtfm-coordinator", coordinator)])
def test_every_command_and_option_is_explained(name: str, app: object) -> None:
    bare = []
    for words, command in commands(parser(app), name):  # type: ignore[arg-type]
        bare += [words] if not command.help else []
        bare += [f"{words} {one.opts[0]}" for one in command.params if not getattr(one, "help", "")]
    assert bare == []


def test_every_file_that_the_programs_name_is_in_the_list_of_files() -> None:
    parts = {part for one in (*COORDINATOR_FILES, *NODE_FILES) for part in Path(one.path).parts}
    sources = [path for package in ("protocol", "node", "coordinator") for path in (ROOT / package).rglob("*.py")]
    named = {name for path in sources if path.name not in ELSEWHERE for name in file_names(path)}
    assert named - parts - OTHERS == set(), "say in docs/generate/state_files.py what it is"


def file_names(path: Path) -> Iterator[str]:
    """Names of files in a source: what is put behind a folder, and constants with an ending of one of ours."""
    for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div) and isinstance(found.right, ast.Constant):
            if isinstance(found.right.value, str):
                yield found.right.value
        elif isinstance(found, ast.Constant) and re.fullmatch(r"[\w-]+\.(json|jsonl|pem|crt|next)", str(found.value)):
            yield str(found.value)
