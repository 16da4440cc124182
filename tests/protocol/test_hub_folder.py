"""Models of a hub, out of a cache that lies on this disk; nothing is asked of any network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.tokenizer import make_tokenizer, save
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.hub_folder import hub_folder
from dtfm_protocol.job.job_file import Job, Model
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.whole_model import build_whole

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TRAINING = {"steps": 2, "global_batch": 2, "micro_batch": 1, "sequence_length": 8, "learning_rate": 1e-3}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache of `huggingface_hub` with one model, as that library lays it out; it is offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub_folder.cache_clear()
    snapshot = kept(tmp_path / "hub", "tiny")
    fields = {"architecture": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2}
    whole = build_whole(resolve_config(Model.model_validate(fields), 257, 32), seed=1)
    whole.config.attn_pdrop = whole.config.resid_pdrop = 0.1
    whole.save_pretrained(snapshot)
    save(make_tokenizer(Data(text="cpython"), []), snapshot)
    yield tmp_path / "hub"
    hub_folder.cache_clear()


def kept(root: Path, name: str) -> Path:
    """A model's folder in the cache, empty."""
    repository = root / f"models--somebody--{name}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    return repository / "snapshots" / COMMIT


def test_a_model_of_the_cache_is_begun_with_its_own_tokenizer_and_without_its_dropout(
    tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 40)
    model = {"hub": "somebody/tiny"}
    values: dict[str, Any] = {"name": "tuned", "model": model, "data": {"text": ["text.txt"]}, "training": TRAINING}
    job, said = Job.read(values, "job.toml").rooted(tmp_path), list[str]()
    assert job.data.tokenizer_folder == cache / "models--somebody--tiny" / "snapshots" / COMMIT
    made = prepare(job, tmp_path / "state", said.append)
    assert len(made.base) == 4
    assert (made.config["n_embd"], made.config["attn_pdrop"]) == (16, 0)
    assert any("asks for dropout (attn_pdrop, resid_pdrop): the model is trained without it." in line for line in said)


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_revision_is_a_branch_a_tag_or_a_commit(cache: Path, revision: str | None) -> None:
    model = Model(hub="somebody/tiny", revision=revision)
    assert model.folder == cache / "models--somebody--tiny" / "snapshots" / COMMIT


@pytest.mark.parametrize(
    ("hub", "revision", "words"),
    [
        ("somebody/other", None, "somebody/other is not in the hub's cache .* HF_HUB_OFFLINE forbids"),
        ("somebody/tiny", "old", "somebody/tiny at revision old is not in the hub's cache"),
        ("some body/tiny!", None, r"^model\.hub: "),
    ],
)
def test_what_the_cache_lacks_is_refused_in_one_line_when_offline(
    cache: Path, hub: str, revision: str | None, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        _ = Model(hub=hub, revision=revision).folder
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_refused_in_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"^model\.hub: ") as caught:
        _ = Model(hub="somebody/other").folder
    assert "\n" not in str(caught.value)


def test_weights_in_no_readable_format_are_refused(cache: Path) -> None:
    snapshot = kept(cache, "old")
    (snapshot / "config.json").write_text('{"model_type": "gpt2"}')
    (snapshot / "pytorch_model.bin").touch()
    with pytest.raises(UserError, match="has no weights as safetensors"):
        _ = Model(hub="somebody/old").folder


@pytest.mark.parametrize(
    "fields",
    [{"hub": "a/b", "path": "c"}, {"hub": "a/b", "architecture": "gpt2"}, {"path": "c", "revision": "main"}, {}],
)
def test_a_model_comes_from_one_place(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"give one of|it is one of a hub's model"):
        Model.model_validate(fields)
