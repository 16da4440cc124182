"""The examples of fine-tuning: a conversation is learned from where its answer begins, and its answers are right."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dtfm_protocol.data.chat_template import ChatTemplate
from dtfm_protocol.job.job_file import Job

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("finetune_data", EXAMPLES / "finetune_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_function_that_is_asked_for_is_where_the_answer_says(data: ModuleType) -> None:
    asked = [(module, function) for module, names in data.FUNCTIONS.items() for function in names.split()]
    assert len(asked) == len(set(asked)) == len(data.conversations()) > 50
    for module, function in asked:
        assert callable(getattr(importlib.import_module(module), function)), (module, function)
    names = [function for _, function in asked]
    assert len(names) == len(set(names))


def test_the_answers_are_learned_with_their_end_and_the_questions_read(data: ModuleType) -> None:
    job = Job.load(EXAMPLES / "finetune.toml")
    template = ChatTemplate.of_job(job.data.model_copy(update={"tokenizer": "bytes"}))
    assert template is not None
    content = template.content(data.conversations()[0])
    ((first, end),) = content.learned or ()
    assert content.text[:first] == "User: Where is chain?\nAssistant:"
    assert content.text[first:end] == " It is in itertools.<|endoftext|>"


def test_the_job_of_fine_tuning_begins_where_the_one_before_it_ends() -> None:
    base, job = (Job.load(EXAMPLES / name) for name in ("finetune_base.toml", "finetune.toml"))
    assert job.training.sequence_length <= base.training.sequence_length
    assert job.training.method == "lora"
    assert (job.data.packing, job.data.tokenizer) == (True, str(job.model.path))


def test_continued_pretraining_trains_all_of_a_model_that_there_is_with_its_own_tokens() -> None:
    job = Job.load(EXAMPLES / "continued.toml")
    assert job.training.method == "full"
    assert job.model.path is not None
    assert job.data.tokenizer_folder == job.model.path
