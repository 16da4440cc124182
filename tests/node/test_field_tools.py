"""What is trained here is what the field's own tools train, on the same batches."""

import pytest
from benchmarks.field_tools import measure

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("architecture", "method"), [("llama", "full"), ("gpt2", "lora")])
def test_fine_tuning_on_packed_samples_is_that_of_transformers_and_peft(architecture: str, method: str) -> None:
    _, worst = measure(architecture, method, "samples", 5)
    assert worst < 1e-5
