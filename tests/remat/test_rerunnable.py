"""Names of operators: what may run again; checked against what the installed torch says of its own operators."""

from __future__ import annotations

import pytest
import torch

from windtunnel.remat.rerunnable import (
    HIDDEN_WRITES,
    is_blank,
    is_fill,
    is_rerunnable,
    is_view,
    writes_first_input,
)


def _aten():
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace == "aten":
            yield getattr(getattr(torch.ops.aten, base), overload or "default")


OPERATORS = sorted(_aten(), key=str)


def _written(operator):
    return [a for a in operator._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _is_tensor(argument):
    return "Tensor" in str(argument.type)


@pytest.mark.parametrize(
    "name",
    [
        "aten.add.Tensor",
        "aten::add.Tensor",
        "aten.mm.default",
        "aten.native_dropout.default",  # random: its generator is set back first
        "aten.native_batch_norm.default",
        "aten.add_.Tensor",
        "aten.normal_.default",  # fills memory it is given
        "prims.convert_element_type.default",
        "aten._softmax.default",
    ],
)
def test_plain_computations_may_run_again(name):
    assert is_rerunnable(name)
    assert is_rerunnable(name, is_cuda=True)


@pytest.mark.parametrize(
    "name",
    [
        "mylib.kernel.default",
        "c10d.all_reduce",
        "_c10d_functional.all_gather_into_tensor.default",
        "memcpy.host_to_device",
        "aten.empty.memory_format",
        "aten.empty_like.default",
        "aten.randn.default",
        "aten.zeros_like.default",
        "aten.nonzero.default",
        "aten.index.Tensor",
        "aten.view.default",
        "aten._unsafe_view.default",
        "aten.set_.source_Storage",
        "aten.resize_.default",
    ],
)
def test_what_has_side_effects_no_inputs_or_unknown_shapes_may_not(name):
    assert not is_rerunnable(name)


@pytest.mark.parametrize(
    "name", ["aten.index_add.default", "aten.scatter_add_.default", "aten.cumsum.default"]
)
def test_what_adds_in_no_fixed_order_on_cuda_may_run_again_on_the_host_only(name):
    assert is_rerunnable(name)
    assert not is_rerunnable(name, is_cuda=True)


def test_operators_that_write_their_first_argument_are_those_of_the_schemas():
    expected = set()
    for operator in OPERATORS:
        first = next(iter(operator._schema.arguments), None)
        if (
            first is not None
            and first.alias_info is not None
            and first.alias_info.is_write
            and not first.is_out
        ):
            expected.add(str(operator))
    assert {str(o) for o in OPERATORS if writes_first_input(str(o))} == expected


def test_views_are_those_of_the_schemas_and_the_four_that_do_not_say_so():
    said = {str(o) for o in OPERATORS if not _written(o) and any(r.alias_info for r in o._schema.returns)}
    found = {str(o) for o in OPERATORS if is_view(str(o)) and not _written(o)}
    assert found - said == {
        "aten._unsafe_view.default",
        "aten.unsafe_chunk.default",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default",
    }
    assert said - found == set()


@pytest.mark.parametrize(
    "tag", [torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view]
)
def test_nothing_with_a_tag_that_forbids_it_may_run_again(tag):
    assert [str(o) for o in OPERATORS if tag in o.tags and is_rerunnable(str(o))] == []


def test_nothing_made_from_numbers_alone_may_run_again():
    """Unless it makes no tensor at all: then there is nothing to evict either."""
    wrong = [
        str(o)
        for o in OPERATORS
        if not any(_is_tensor(a) for a in o._schema.arguments if not a.is_out)
        and any("Tensor" in str(r.type) for r in o._schema.returns)
        and is_rerunnable(str(o))
    ]
    assert wrong == []


def test_what_torch_calls_not_bitwise_repeatable_may_not_run_again_on_cuda():
    tag = torch.Tag.nondeterministic_bitwise
    assert [str(o) for o in OPERATORS if tag in o.tags and is_rerunnable(str(o), is_cuda=True)] == []


def test_every_name_in_the_tables_is_an_operator_of_torch():
    bases = {str(o).split(".")[1] for o in OPERATORS}
    assert [base for base in HIDDEN_WRITES if base not in bases] == []


def test_running_statistics_are_where_the_table_says():
    for base, positions in HIDDEN_WRITES.items():
        schema = getattr(torch.ops.aten, base).default._schema
        names = [schema.arguments[i].name for i in positions]
        assert names == ["running_mean", "running_var"], base


def test_every_operator_with_running_statistics_is_in_the_table_or_does_not_write_them():
    with_statistics = {
        str(o).split(".")[1] for o in OPERATORS if any(a.name == "running_mean" for a in o._schema.arguments)
    }
    read_only = ("backward", "no_training", "no_update", "functional")
    assert {b for b in with_statistics if not any(part in b for part in read_only)} == set(HIDDEN_WRITES)


def test_blanks_and_fills():
    assert is_blank("aten.empty_like.default")
    assert not is_blank("aten.zeros_like.default")
    assert is_fill("aten.copy_.default")
    assert not is_fill("aten.add_.Tensor")
