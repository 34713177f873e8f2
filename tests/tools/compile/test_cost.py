"""Costs of programs whose flops, bytes and communication are computed by hand."""

import math

import pytest

from podzero.tools.compile.cost import Collective, count
from podzero.tools.compile.hlo import HloArray, parse

HBM, VMEM = 0, 1


def program(entry, *computations):
    """The text of a module with these lines as its entry computation."""
    body = "\n".join(f"  {line}" for line in entry)
    return "\n\n".join(
        ["HloModule test, is_scheduled=true", *computations, f"ENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}"]
    )


def computation(name, *lines):
    body = "\n".join(f"  {line}" for line in lines)
    return f"%{name} (p: f32[]) -> f32[] {{\n{body}\n}}"


LOOP = (
    "%zero = s32[] constant(0)",
    "%v = f32[256] parameter(0)",
    "%p = (s32[], f32[256]) tuple(%zero, %v)",
    '%w = (s32[], f32[256]) while(%p), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}',
)
"""A loop over `body`, five times by the condition `FIVE`."""
FIVE = computation(
    "cond",
    "%q = (s32[], f32[256]) parameter(0)",
    "%i = s32[] get-tuple-element(%q), index=0",
    "%k = s32[] constant(5)",
    "ROOT %l = pred[] compare(%i, %k), direction=LT",
)


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (HloArray("f32", (3, 5)), 60),
        (HloArray("f32", (3, 5), (1, 0), (8, 128)), 8 * 128 * 4),
        (HloArray("f32", (3, 5), (0, 1), (8, 128)), 8 * 128 * 4),
        (HloArray("f32", (2, 9, 130), (2, 1, 0), (8, 128)), 2 * 16 * 256 * 4),
        (HloArray("f32", (9, 2, 130), (2, 0, 1), (8, 128)), 2 * 16 * 256 * 4),
        (HloArray("bf16", (100,), (0,), (128,)), 256),
        (HloArray("s32", (), (), (128,)), 512),
        (HloArray("s4", (16, 128), (1, 0), (8, 128)), 1024),
    ],
)
def test_arrays_are_padded_to_whole_tiles(array, size):
    assert array.bytes == size


def test_a_fusion_reads_its_operands_and_writes_its_result_in_their_memory_spaces():
    cost = count(parse(program(
        ["%a = f32[8,128]{1,0:T(8,128)} parameter(0)",
         "%b = f32[8,128]{1,0:T(8,128)S(1)} parameter(1)",
         "ROOT %f = f32[16,128]{1,0:T(8,128)} fusion(%a, %b), kind=kLoop, calls=%fused"],
        computation("fused",
                    "%x = f32[8,128]{1,0:T(8,128)} parameter(0)",
                    "%y = f32[8,128]{1,0:T(8,128)S(1)} parameter(1)",
                    "ROOT %c = f32[16,128]{1,0:T(8,128)} concatenate(%x, %y), dimensions={0}"),
    )))  # fmt: skip
    assert cost.traffic == {HBM: 4096 + 8192, VMEM: 4096}
    assert (cost.flops, cost.collectives, cost.host_transfers) == (0, [], 0)


def test_a_computation_may_name_the_thread_that_executes_it():
    """TPU7x reduces over chips on its SparseCores."""
    sum_of_two = computation("sum", "ROOT %s = f32[] add(%p, %p)") + ', execution_thread="sparsecore"'
    module = parse(program(["ROOT %p = f32[] parameter(0)"], sum_of_two))
    assert [*module.computations] == ["sum", "main"]


def test_a_fusion_that_slices_reads_only_the_slice():
    cost = count(parse(program(
        ["%table = f32[1000,8,128]{2,1,0:T(8,128)} parameter(0)",
         "%i = s32[]{:T(128)S(2)} parameter(1)",
         "ROOT %f = f32[1,8,128]{2,1,0:T(8,128)} fusion(%table, %i), kind=kLoop, calls=%fused"],
        computation("fused",
                    "%t = f32[1000,8,128]{2,1,0:T(8,128)} parameter(0)",
                    "%j = s32[]{:T(128)S(2)} parameter(1)",
                    "%z = s32[]{:T(128)} constant(0)",
                    "%s = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%t, %j, %z, %z), dynamic_slice_sizes={1,8,128}",
                    "ROOT %n = f32[1,8,128]{2,1,0:T(8,128)} negate(%s)"),
    )))  # fmt: skip
    assert cost.traffic[HBM] == 2 * 4096


def test_an_update_in_place_writes_only_the_slice():
    cost = count(parse(program(
        ["%table = f32[1000,8,128]{2,1,0:T(8,128)} parameter(0)",
         "%row = f32[1,8,128]{2,1,0:T(8,128)} parameter(1)",
         "%i = s32[]{:T(128)S(2)} parameter(2)",
         "ROOT %f = f32[1000,8,128]{2,1,0:T(8,128)} fusion(%table, %row, %i), kind=kLoop, calls=%fused"],
        computation("fused",
                    "%t = f32[1000,8,128]{2,1,0:T(8,128)} parameter(0)",
                    "%r = f32[1,8,128]{2,1,0:T(8,128)} parameter(1)",
                    "%j = s32[]{:T(128)S(2)} parameter(2)",
                    "%z = s32[]{:T(128)} constant(0)",
                    "ROOT %u = f32[1000,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%t, %r, %j, %z, %z)"),
    )))  # fmt: skip
    assert cost.traffic[HBM] == 2 * 4096


def loop(bound="%k", step="%one", attributes=""):
    """A loop over a counter, a vector and a bound of 9, whose body negates the vector."""
    return parse(program(
        ["%zero = s32[] constant(2)", "%v = f32[256] parameter(0)", "%nine = s32[] constant(9)",
         "%c = s32[] copy(%zero)",
         "%p = (s32[], f32[256], s32[]) tuple(%c, %v, %nine)",
         f"ROOT %w = (s32[], f32[256], s32[]) while(%p), condition=%cond, body=%body{attributes}"],
        computation("cond",
                    "%q = (s32[], f32[256], s32[]) parameter(0)",
                    "%i = s32[] get-tuple-element(%q), index=0",
                    "%n = s32[] get-tuple-element(%q), index=2",
                    "%k = s32[] constant(7)",
                    f"ROOT %l = pred[] compare(%i, {bound}), direction=LT"),
        computation("body",
                    "%b = (s32[], f32[256], s32[]) parameter(0)",
                    "%i = s32[] get-tuple-element(%b), index=0",
                    "%v = f32[256] get-tuple-element(%b), index=1",
                    "%n = s32[] get-tuple-element(%b), index=2",
                    "%one = s32[] constant(1)", "%two = s32[] constant(2)",
                    f"%j = s32[] fusion(%i), kind=kLoop, calls=%up, step={step}" if step == "fused" else
                    f"%j = s32[] add(%i, {step})",
                    "%w = f32[256] negate(%v)",
                    "ROOT %r = (s32[], f32[256], s32[]) tuple(%j, %w, %n)"),
        computation("up",
                    "%x = s32[] parameter(0)", "%y = s32[] constant(1)", "ROOT %z = s32[] add(%x, %y)"),
    ))  # fmt: skip


SCALARS = 3 * 4 + 2 * 4 + 1
"""Bytes of the counter's addition and comparison in each iteration (pred is a byte)."""


@pytest.mark.parametrize(
    ("arguments", "trip_count"),
    [
        ({"attributes": ', backend_config={"known_trip_count":{"n":"3"}}'}, 3),
        ({}, 7 - 2),
        ({"bound": "%n"}, 9 - 2),
        ({"step": "fused"}, 7 - 2),
    ],
)
def test_the_body_of_a_loop_is_multiplied_by_the_trip_count(arguments, trip_count):
    cost = count(loop(**arguments))
    copied = 8
    fused_saves = 4 if arguments.get("step") == "fused" else 0
    assert cost.traffic[HBM] == copied + trip_count * (2 * 1024 + SCALARS - fused_saves)
    assert cost.unknown_loops == 0


@pytest.mark.parametrize("arguments", [{"step": "%two"}, {"bound": "%i"}])
def test_a_loop_with_an_unknown_trip_count_counts_once_and_is_reported(arguments):
    cost = count(loop(**arguments))
    assert cost.traffic[HBM] == 8 + 2 * 1024 + SCALARS
    assert cost.unknown_loops == 1


def test_products_and_convolutions_count_two_flops_per_multiply_add():
    cost = count(parse(program(
        ["%a = f32[32,64] parameter(0)", "%b = f32[64,16] parameter(1)",
         "%x = f32[10,6,7,32] parameter(2)", "%k = f32[3,3,32,5] parameter(3)",
         "%d = f32[32,16] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
         "ROOT %c = f32[10,6,7,5] convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"],
    )))  # fmt: skip
    # A window of 3 slides over 6 elements, padded by one on each side: 3 * 6 - 2 products are not with padding.
    assert cost.flops == 2 * 32 * 16 * 64 + 2 * (10 * 5 * 32) * (3 * 6 - 2) * (3 * 7 - 2)


def test_products_of_integers_are_counted_apart():
    cost = count(parse(program(
        ["%a = s8[32,64] parameter(0)", "%b = s8[64,16] parameter(1)", "%f = bf16[64,16] parameter(2)",
         "%i = s32[32,16] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
         "%c = bf16[32,64] convert(%a)",
         "ROOT %d = bf16[32,16] dot(%c, %f), lhs_contracting_dims={1}, rhs_contracting_dims={0}"],
    )))  # fmt: skip
    assert cost.flops == 2 * cost.integer_flops == 2 * 2 * 32 * 16 * 64


def test_products_with_padding_and_dilation_do_not_count():
    cost = count(parse(program(
        ["%x = f32[1,8,1] parameter(0)", "%y = f32[1,4,1] parameter(1)", "%k = f32[3,1,1] parameter(2)",
         "%s = f32[1,3,1] convolution(%x, %k), window={size=3 stride=2}, dim_labels=b0f_0io->b0f",
         # Four elements with zeros between them, 0 . 1 . 2 . 3, and five windows of three.
         "ROOT %d = f32[1,5,1] convolution(%y, %k), window={size=3 lhs_dilate=2}, dim_labels=b0f_0io->b0f"],
    )))  # fmt: skip
    assert cost.flops == 2 * 3 * 3 + 2 * (2 + 1 + 2 + 1 + 2)


def test_flops_agree_with_xla_for_a_program_without_loops():
    """Compiled for the CPU, where XLA's own cost analysis gives the same flops."""
    import jax
    import jax.numpy as jnp

    def layer(x, k, w):
        y = jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y.reshape(len(y), -1) @ w

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 6, 7, 4), (3, 3, 4, 8), (336, 5))]
    compiled = jax.jit(layer).lower(*shapes).compile()
    assert count(parse(compiled.as_text())).flops == compiled.cost_analysis()["flops"]


def test_asynchronous_copies_count_once():
    cost = count(parse(program(
        ["%a = f32[256] parameter(0)",
         "%s = (f32[256]{0:S(1)}, f32[256]{0}, u32[]{:S(2)}) copy-start(%a)",
         "ROOT %d = f32[256]{0:S(1)} copy-done(%s)"],
    )))  # fmt: skip
    assert cost.traffic == {HBM: 1024, VMEM: 1024}


def test_collectives_are_listed_with_group_size_and_times():
    cost = count(parse(program(
        ["%a = f32[256] parameter(0)",
         "%r = f32[256] all-reduce(%a), replica_groups=[2,8]<=[16], to_apply=%add",
         "%g = f32[1024] all-gather(%r), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}",
         "%s = (f32[256], f32[1024]) all-gather-start(%a), replica_groups={{0,1,2,3}}, dimensions={0}",
         "%t = f32[1024] all-gather-done(%s)",
         "ROOT %p = f32[256] collective-permute(%a), source_target_pairs={{0,1},{1,0}}"],
    )))  # fmt: skip
    assert cost.collectives == [
        Collective("all-reduce", 8, 1024, 1),
        Collective("all-gather", 4, 4096, 1),
        Collective("all-gather", 4, 4096, 1),
        Collective("collective-permute", 2, 1024, 1),
    ]
    assert [c.sent for c in cost.collectives] == [2 * 7 / 8 * 1024, 3072, 3072, 1024]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("mesh['data'=4] {'data'}", 4),
        ("mesh['data'=4,'model'=2] {'model'}", 2),
        ("mesh['data'=4,'model'=2] {'data','model'}", 8),
        ("mesh['data'=8] {'data':(2)4}", 4),
    ],
)
def test_groups_along_axes_of_a_mesh_have_the_product_of_their_sizes(groups, size):
    lines = ["%a = f32[256] parameter(0)", f"ROOT %r = f32[256] all-reduce(%a), replica_groups={groups}, to_apply=%add"]
    assert count(parse(program(lines))).collectives == [Collective("all-reduce", size, 1024, 1)]


def test_a_reduction_fused_with_its_slice_is_a_reduce_scatter():
    cost = count(parse(program(
        ["%a = f32[1024] parameter(0)",
         "ROOT %f = f32[256] fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1"],
        computation("all-reduce-scatter.1",
                    "%x = f32[1024] parameter(0)",
                    "%r = f32[1024] all-reduce(%x), replica_groups=[1,4]<=[4], to_apply=%add",
                    "%z = s32[] constant(0)",
                    "ROOT %s = f32[256] dynamic-slice(%r, %z), dynamic_slice_sizes={256}"),
    )))  # fmt: skip
    assert cost.collectives == [Collective("reduce-scatter", 4, 4096, 1)]
    assert cost.collectives[0].sent == 3072


def test_estimated_cycles_are_summed_over_iterations_without_fused_instructions():
    cost = count(parse(program(
        [*LOOP,
         "%r = f32[256] get-tuple-element(%w), index=1",
         'ROOT %c = f32[256] copy(%r), backend_config={"window_config":{"estimated_cycles":"1000"}}'],
        FIVE,
        computation("body",
                    "%b = (s32[], f32[256]) parameter(0)",
                    "%i = s32[] get-tuple-element(%b), index=0",
                    "%v = f32[256] get-tuple-element(%b), index=1",
                    "%f = f32[256] fusion(%v), kind=kLoop, calls=%fused, "
                    'backend_config={"window_config":{"estimated_cycles":"20"}}',
                    "ROOT %t = (s32[], f32[256]) tuple(%i, %f)"),
        computation("fused",
                    "%x = f32[256] parameter(0)",
                    'ROOT %n = f32[256] negate(%x), backend_config={"window_config":{"estimated_cycles":"99"}}'),
    )))  # fmt: skip
    assert cost.cycles == 5 * 20 + 1000


def test_the_largest_number_of_cycles_is_no_estimate():
    """libtpu writes 2^63 - 1 cycles where it does not know: TPU7x would take 133 years for a small network."""
    cost = count(parse(program(
        ["%a = f32[256] parameter(0)",
         '%b = f32[256] negate(%a), backend_config={"window_config":{"estimated_cycles":"9223372036854775807"}}',
         'ROOT %c = f32[256] copy(%b), backend_config={"window_config":{"estimated_cycles":"1000"}}'],
    )))  # fmt: skip
    assert math.isnan(cost.cycles)
    assert cost.without_estimate == {"negate": 1}


def test_what_runs_without_an_estimate_is_counted_by_kind():
    """Also in loops; buffers and single numbers cost nothing."""
    cost = count(parse(program(
        [*LOOP,
         '%n = f32[256] custom-call(), custom_call_target="AllocateBuffer"',
         "%r = f32[256] get-tuple-element(%w), index=1",
         'ROOT %c = f32[256] copy(%r), backend_config={"window_config":{"estimated_cycles":"1000"}}'],
        FIVE,
        computation("body",
                    "%b = (s32[], f32[256]) parameter(0)",
                    "%i = s32[] get-tuple-element(%b), index=0",
                    "%v = f32[256] get-tuple-element(%b), index=1",
                    "%f = f32[256] fusion(%v), kind=kLoop, calls=%fused",
                    "%s = (f32[256]{0:S(1)}, f32[256]{0}, u32[]{:S(2)}) copy-start(%f)",
                    "%d = f32[256]{0:S(1)} copy-done(%s)",
                    '%k = f32[256] custom-call(%d), custom_call_target="TopK"',
                    "ROOT %t = (s32[], f32[256]) tuple(%i, %k)"),
        computation("fused",
                    "%x = f32[256] parameter(0)",
                    "%g = f32[256] gather(%x, %x)",
                    "ROOT %n = f32[256] negate(%g)"),
    )))  # fmt: skip
    assert cost.cycles == 1000
    assert cost.without_estimate == {"gather": 5, "copy": 5, "TopK": 5}


@pytest.mark.parametrize(("scope", "large", "small"), [("new_games", 0.25, 0.75), ("other", 1, 0)])
def test_a_conditional_takes_its_larger_branch_as_often_as_is_known_or_else_always(scope, large, small):
    def branch(name, cycles, size):
        return computation(
            name, f"%x = f32[{size}] parameter(0)",
            f'ROOT %n = f32[{size}] negate(%x), backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}',
        )  # fmt: skip

    cost = count(parse(program(
        ["%v = f32[256] parameter(0)", "%s = f32[8] parameter(1)", "%b = pred[] parameter(2)",
         "ROOT %c = f32[256] conditional(%b, %v, %s), branch_computations={%much, %little}, "
         f'metadata={{op_name="jit(move)/{scope}/cond"}}'],
        branch("much", 1000, 256), branch("little", 100, 8),
    )), {"new_games": 0.25})  # fmt: skip
    assert cost.cycles == 1000 * large + 100 * small


def test_what_the_slices_exchange_counts_as_collectives_between_slices():
    """XLA sums within each slice, and lets the hosts of two slices exchange what each chip sends and receives."""
    megascale = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
        '_xla_megascale_target="{1,2,3}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    cost = count(parse(program(
        ["%p = f32[2,128] parameter(0)", "%t = token[] after-all()",
         "%a = f32[2,128] all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%sum",
         f"%s = (f32[2,128], u32[], token[]) send(%a, %t), channel_id=4, {megascale}",
         f"%r = (f32[2,128], u32[], token[]) recv(%t), channel_id=3, {megascale}",
         f"%e = token[] send-done(%s), channel_id=4, {megascale}",
         f"%d = (f32[2,128], token[]) recv-done(%r), channel_id=3, {megascale}",
         "ROOT %g = f32[2,128] get-tuple-element(%d), index=0"],
        computation("sum", "%x = f32[] parameter(0)", "%y = f32[] parameter(1)", "ROOT %z = f32[] add(%x, %y)"),
    )))  # fmt: skip
    within, between = cost.collectives
    assert within == Collective("all-reduce", 4, 1024, 1)
    assert between == Collective("all-reduce", 3, 1024, 1, between_slices=True)
    assert between.sent == pytest.approx(2 * 2 / 3 * 1024)
    assert cost.host_transfers == 0
    assert not cost.without_estimate


def test_transfers_to_the_host_are_counted():
    cost = count(parse(program(
        ["%a = f32[256] parameter(0)", "%t = token[] after-all()",
         "%s = (f32[256], u32[], token[]) send(%a, %t), channel_id=1, is_host_transfer=true",
         "ROOT %d = token[] send-done(%s), channel_id=1"],
    )))  # fmt: skip
    assert cost.host_transfers == 1


@pytest.mark.parametrize("text", ["HloModule x", "ENTRY %m () -> f32[] {\n  nonsense\n}"])
def test_text_that_is_not_hlo_is_refused(text):
    with pytest.raises(ValueError, match=r"entry computation|HLO instruction"):
        parse(text)
