"""The table of slots: what training keeps of a parameter, in bytes and by name."""

import pytest

from dtfm_protocol.checkpoint.state_slots import ADAMW, ADAMW_8BIT, SGD, TABLES, Slot, StateTable, state_table
from dtfm_protocol.job.job_file import OptimizerName

HALF = StateTable(
    (
        Slot("weight", "BF16", is_state=True),
        Slot("gradient", "F32", is_state=False),
        Slot("momentum", "F32", is_state=True, since=2),
    )
)


def test_a_tables_bytes_are_those_of_its_rows() -> None:
    assert (ADAMW.parameter_bytes, ADAMW.state_bytes) == (16, 12)
    assert (SGD.parameter_bytes, SGD.state_bytes) == (12, 8)
    assert (ADAMW_8BIT.parameter_bytes, ADAMW_8BIT.state_bytes) == (10 + 8 / 256, 6 + 8 / 256)
    assert (HALF.parameter_bytes, HALF.state_bytes) == (10, 6)
    assert HALF.most_file_bytes(1_000_000) - HALF.most_file_bytes(0) == 6_000_000


def test_a_state_has_the_slots_that_there_are_after_its_step_in_the_tables_order_by_name() -> None:
    assert HALF.keys(("b", "a"), 1) == ("weight/a", "weight/b")
    assert HALF.keys(("b", "a"), 2) == ("weight/a", "momentum/a", "weight/b", "momentum/b")
    assert ADAMW.keys(("a",), 0) == ("weight/a",)
    assert ADAMW.keys(("a",), 1) == ("weight/a", "exp_avg/a", "exp_avg_sq/a")


def test_a_slots_name_means_the_same_in_every_table() -> None:
    """Only what weights are kept in is the job's choice."""
    types = {(slot.name, slot.dtype, slot.block) for table in TABLES.values() for slot in table.slots}
    assert len({name for name, *_ in types}) == len(types)


@pytest.mark.parametrize("name", TABLES)
def test_weights_in_bf16_take_two_bytes_less_and_all_else_is_as_it_was(name: OptimizerName) -> None:
    half, whole = state_table(name, "bf16"), state_table(name, "fp32")
    assert whole == TABLES[name]
    assert half.parameter_bytes == whole.parameter_bytes - 2
    assert half.of_key("weight/a").dtype == "BF16"
    assert half.moments == whole.moments


@pytest.mark.parametrize("name", TABLES)
def test_what_is_offloaded_is_the_state_but_the_weights_and_nothing_else_changes(name: OptimizerName) -> None:
    table, away = TABLES[name], state_table(name, "fp32", "optimizer")
    assert table.host_bytes == 0
    assert away.host_bytes == table.state_bytes - 4
    assert {slot.name for slot in away.slots if slot.place == "host"} == {slot.name for slot in table.moments}
    assert StateTable(tuple(slot._replace(place="device") for slot in away.slots)) == table
    assert away.parameter_bytes == table.parameter_bytes


def test_a_tensors_type_is_its_slots() -> None:
    assert HALF.of_key("weight/model.layers.0/x").dtype == "BF16"
    assert HALF.of_key("momentum/a").dtype == "F32"


def test_a_tensor_has_its_parameters_shape_or_one_element_for_each_block() -> None:
    code, scale = ADAMW_8BIT.of_key("exp_avg_code/a"), ADAMW_8BIT.of_key("exp_avg_scale/a")
    assert (code.shape((3, 200)), scale.shape((3, 200))) == ((3, 200), (3,))
    assert (code.shape(()), scale.shape(())) == ((), (1,))
    assert scale.shape((16, 16)) == (1,)
    assert scale.shape((0, 16)) == (0,)
