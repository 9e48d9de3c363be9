"""FLOP of one equation on whole (unsharded) arrays.

A `dot_general` of batch B, free M and N, contraction K costs 2·B·M·N·K, four times that on complex
numbers; a convolution 2 FLOP per kernel element, per input channel of its group, per output
element; what reads or writes a part of an array is counted by that part's elements, everything else
by the elements that it touches. Sharding divides these by the number of shards of the op's factors.

A Pallas call is priced by its body at every step of its grid (`autoshard.program.kernels.work`),
cuDNN's attention by its products and exponentials (`autoshard.program.kernels.attention`), a
function of `autoshard.kernel` by what it holds (`autoshard.program.kernels.ruled_work`).

`FLOPS` is the one table of arithmetic. What only moves or makes elements stands in `MOVES`, calls
whose bodies are laid out or that only stand inside of a `shard_map` in `INSIDE`, and what nobody
knows from outside in `UNKNOWN`. A primitive that is in none of them is as unknown as those: its
arithmetic is counted as one FLOP an element, and plans say so (`autoshard.program.notes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autoshard.compat import FUSED_ATTENTION, KERNELS, PALLAS, RULED
from autoshard.compat.row_exchange import ROW_EXCHANGE
from autoshard.program.kernels.attention import attention_work
from autoshard.program.kernels.records import SIDES, Arithmetic, KernelWork
from autoshard.program.kernels.ruled_work import ruled_work
from autoshard.program.kernels.scalars import Array
from autoshard.program.kernels.work import kernel_work
from autoshard.program.ragged import ragged_flops
from autoshard.program.vocabulary import TRANSFERS

Formula = Callable[[Any], float]


def _size(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))


def _dot_general(equation: Any) -> float:
    (contracting, _), _ = equation.params["dimension_numbers"]
    left, result = equation.invars[0].aval.shape, equation.outvars[0].aval
    terms = 4.0 if str(result.dtype).startswith("complex") else 1.0
    return 2.0 * terms * _size(result) * math.prod(left[d] for d in contracting)


def _convolution(equation: Any) -> float:
    numbers = equation.params["dimension_numbers"]
    kernel = equation.invars[1].aval.shape
    out_channels = kernel[numbers.rhs_spec[0]]
    return 2.0 * _size(equation.outvars[0].aval) * math.prod(kernel) / max(out_channels, 1)


def _logarithmic(equation: Any) -> float:
    dimension = equation.params.get("dimension", -1)
    shape = equation.invars[0].aval.shape
    length = shape[dimension] if shape else 1
    return sum(_size(v.aval) for v in equation.invars) * max(1.0, math.log2(max(length, 2)))


def _fft(equation: Any) -> float:
    # 5 N log2 N per transform (Cooley-Tukey; the FFTW convention).
    length = math.prod(equation.params["fft_lengths"])
    return 5.0 * _size(equation.outvars[0].aval) * max(1.0, math.log2(max(length, 2)))


def _dense_algebra(equation: Any) -> float:
    # Cubic in the matrix dimension; the constant is of order one for all of them.
    shape = equation.invars[0].aval.shape
    return float(math.prod(shape) * (shape[-1] if shape else 1))


def _result(equation: Any) -> float:
    return float(max(_size(equation.outvars[0].aval), 1))


def _update(equation: Any) -> float:
    """The part that a dynamic update or a scatter writes; the rest stays in place."""
    position = 1 if equation.primitive.name == "dynamic_update_slice" else 2
    return float(max(_size(equation.invars[position].aval), 1))


def _scaled_product(equation: Any) -> float:
    """`[b, m, k] x [b, n, k]`, as XLA's block-scaled products have it."""
    left, right = (atom.aval.shape for atom in equation.invars[:2])
    return 2.0 * math.prod(left) * right[-2]


def _attention(products: float) -> Formula:
    """Fused attention of `[b, t, n, h]` queries, as so many products of queries and keys."""

    def flops(equation: Any) -> float:
        query, key = (atom.aval.shape for atom in equation.invars[:2])
        length = key[2] if equation.params.get("layout") == 1 else key[1]
        return 2.0 * products * math.prod(query) * length

    return flops


def _solve(equation: Any) -> float:
    """Back substitution of one triangle: its size squared for every column of the other side."""
    return float(_size(equation.invars[1].aval) * equation.invars[0].aval.shape[-1])


def _kernel(equation: Any) -> float:
    """All that a kernel computes."""
    work = work_of_kernel(equation)
    return 0.0 if work is None else work.flops


def _by_elements(equation: Any) -> float:
    outputs = sum(_size(v.aval) for v in equation.outvars)
    inputs = sum(_size(v.aval) for v in equation.invars)
    return float(max(outputs, inputs, 1))


def _names(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


def _families() -> Iterator[tuple[Formula, str]]:
    """Formulas, each with the primitives that it is of."""
    yield _result, "gather dynamic_slice slice"
    yield (
        _update,
        "dynamic_update_slice scatter scatter-add scatter-mul scatter-min scatter-max scatter-sub",
    )
    yield _dot_general, "dot_general"
    yield ragged_flops, "ragged_dot_general"
    yield _kernel, " ".join(sorted({*KERNELS, RULED}))
    yield _scaled_product, "scaled_matmul scaled_matmul_wrapper scaled_dot"
    yield _attention(2.0), "dot_product_attention_fwd"
    yield _attention(5.0), "dot_product_attention_bwd"
    yield _attention(2.0), "dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper"
    yield _attention(5.0), "dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper"
    yield _convolution, "conv_general_dilated"
    yield _logarithmic, "sort top_k approx_top_k"
    yield _fft, "fft"
    yield (
        _dense_algebra,
        "cholesky lu qr geqrf geqp3 householder_product ormqr eigh eig svd schur tridiagonal "
        "hessenberg symmetric_product cholesky_update",
    )
    yield _solve, "triangular_solve"
    yield (
        _by_elements,
        # arithmetic of single elements
        "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt "
        "ceil clamp clz complex conj cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 "
        "floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log "
        "log1p log2 logistic lt lt_to max min mul mulhi ne neg nextafter not one_minus_square or "
        "polygamma polynomial population_count pow real reciprocal "
        "reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left "
        "shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh xor "
        "zeta "
        # along dimensions
        "reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_scatter "
        "select_and_scatter_add select_and_gather_add "
        "argmax argmin cumlogsumexp cummax cummin cumprod cumsum reduce reduce_and reduce_max "
        "reduce_min reduce_or reduce_prod reduce_sum reduce_xor tridiagonal_solve "
        "lu_pivots_to_permutation "
        # random numbers
        "philox2x32 philox4x32 random_bits random_clone random_fold_in random_gamma random_seed "
        "random_split rng_bit_generator rng_uniform threefry2x32 threefry4x32",
    )


FLOPS: Mapping[str, Formula] = {
    primitive: formula for formula, names in _families() for primitive in names.split()
}
"""The one table of arithmetic: FLOP of an equation, by primitive."""

MOVES = _names(
    "after_all bitcast_convert_type broadcast_in_dim broadcast_to concatenate",
    "convert_element_type copy create_token device_put dimension_size dim_as_value empty empty2",
    "expand_dims from_edtype full iota iota_2x32_shape layout_constraint multiple_of name",
    "optimization_barrier pad random_unwrap random_wrap relayout reshape reshard rev",
    "sharding_constraint shape_assertion shard_alike split squeeze stack stop_gradient tie tile",
    "to_edtype transpose unstack with_memory_space_constraint pin unpin xla_metadata_value",
    "inspect_sharding dce_sink debug_callback debug_print check",
    # rows, to other parts
    ROW_EXCHANGE,
    # within kernels
    "bitcast einshape_lo max_contiguous remove_memory_space roll",
)
"""What makes, moves, renames or prints elements, and computes none."""

INSIDE = _names(
    # calls and regions, of which the bodies are priced
    "call call_exported closed_call composite cond core_map core_call custom_jvp_call",
    "custom_lin custom_linear_solve custom_vjp_call custom_vmap_call eval_jaxpr jit laid_out",
    "laid_out_tangent linear_call mpmd_map platform_index program_order remat2 remat_opt",
    "run_scoped run_state scan stage while xla_metadata_call unreachable create_linear",
    # collectives, and what stands with them, inside of a shard_map
    "global_array_to_host_local_array host_local_array_to_global_array",
    "all_gather all_gather_done all_gather_invariant all_gather_reduced",
    "all_gather_reduced_start all_gather_start all_to_all all_to_all_done all_to_all_start",
    "axis_index pbroadcast pbroadcast_done pbroadcast_start pbroadcast_dynamic pmax pmin",
    "ppermute ppermute_done ppermute_start precv preduced psend psum psum_done psum_invariant",
    "psum_invariant_start psum_start pvary ragged_all_to_all reduce_scatter reduce_scatter_done",
    "reduce_scatter_start reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin",
    "unreduced_psum unreduced_psum_start unreduced_reduce_scatter",
    "unreduced_reduce_scatter_start vary_unreduced_cast vary_unreduced_cast_p",
)
"""What is priced by what stands inside of it, or stands inside of what is opaque."""

UNKNOWN = _names(
    "shard_map ffi_call tpu_custom_call custom_partitioning cudnn_fusion",
    "io_callback pure_callback bcoo_dot_general bcoo_dot_general_sampled bcoo_extract",
    "bcoo_fromdense bcoo_sort_indices bcoo_spdot_general bcoo_sum_duplicates bcoo_todense",
    "bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense coo_fromdense",
    "coo_matmat coo_matvec coo_spmm coo_spmv coo_todense csr_fromdense csr_matmat csr_matvec",
    "csr_spmm csr_spmv csr_todense spsolve todense",
    "buffer_callback compute_on custom_fusion fusible mosaic_gpu_p rnn_fwd rnn_bwd",
)
"""What is opaque, or depends on data: the arithmetic of these is not known from outside."""

MATRIX = _names(
    "dot_general conv_general_dilated ragged_dot_general scaled_matmul scaled_matmul_wrapper",
    "scaled_dot",
    *KERNELS,
    RULED,
)
"""What runs on the matrix units, as kernels do that people write."""


TRANSCENDENTAL: Mapping[str, float] = {
    **dict.fromkeys(["exp", "exp2", "expm1", "rsqrt", "sqrt", "erfc"], 1.0),
    "logistic": 1.2,
    "tanh": 2.3,
    **dict.fromkeys(["log", "log1p"], 3.0),
    **dict.fromkeys(["pow", "erf_inv"], 4.0),
    **dict.fromkeys(["sin", "cos", "tan"], 8.0),
    "cbrt": 10.0,
    "lgamma": 17.0,
    "digamma": 19.0,
}
"""Seconds of elementwise functions as multiples of an exponential's, as XLA:GPU prices them in
float32 (compiled chains of 1, 8 and 24 of each); all else is 20 times cheaper."""


def equation_flops(equation: Any) -> float:
    """FLOP of `equation` on whole arrays; at least one per output element."""
    return FLOPS.get(equation.primitive.name, _by_elements)(equation)


def work_of_kernel(equation: Any, constants: Sequence[Array | None] = ()) -> KernelWork | None:
    """What a kernel computes and moves; None for other equations.

    Args:
      equation: of a kernel, or any.
      constants: the operands that are constants of the program; None for others.
    """
    if equation.primitive.name in FUSED_ATTENTION:
        return attention_work(equation)
    if equation.primitive.name == RULED:
        return ruled_work(equation, _counts, work_of_kernel)
    return kernel_work(equation, _counts, constants) if equation.primitive.name == PALLAS else None


def _counts(equation: Any) -> Arithmetic:
    name = equation.primitive.name
    flops = 0.0 if name in MOVES else equation_flops(equation)
    if name in MATRIX:
        return Arithmetic(products=flops, filled=_filled(equation, flops))
    return Arithmetic(0.0, flops, TRANSCENDENTAL.get(name, 0.0) * flops)


def _filled(equation: Any, flops: float) -> tuple[float, ...]:
    """FLOP of a product whose contracted and shorter free side fill matrix units, by their side.

    Such a unit keeps a square of one operand and lets the other pass: a side that is shorter than
    the square leaves part of it idle, as columns or as time until the next square is loaded.
    """
    if equation.primitive.name != "dot_general":
        return tuple(flops for _ in SIDES)
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    shared, times = (math.prod(left[d] for d in dims) for dims in (contracted, batch))
    smaller = min(_size(atom.aval) for atom in equation.invars[:2])
    sides = max(shared, 1), max(smaller // max(shared * times, 1), 1)
    return tuple(
        flops * math.prod(math.ceil(one / side) * side / one for one in sides) for side in SIDES
    )


def is_known(primitive: str) -> bool:
    """Whether the arithmetic of `primitive` is priced, or known to be none."""
    return any(primitive in known for known in (FLOPS, MOVES, INSIDE, TRANSFERS))


def is_matrix_op(primitive: str) -> bool:
    """Whether `primitive` runs on the matrix units (at their peak) rather than the vector units."""
    return primitive in MATRIX
