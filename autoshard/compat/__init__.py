"""The only home of private parts of jax and jaxlib, one file per idea.

Everything else in this package uses JAX's public API.

jaxprs              what an equation calls and is made of; equations bound again elsewhere
kernels             Pallas calls: their grids, blocks and bodies; calls made smaller
told_kernels        Pallas calls on a part of their grid that are told where it starts
kernel_equations    the equations of kernels, changed where they stand
ruled_calls         calls of functions of which a rule says how they may be cut
fused_attention     cuDNN's attention: what its equations say; traced without a GPU
source_lines        the line of the user's source that an equation or an error comes from
layout_primitives   layouts of an array, its cotangent and what is computed again
default_order       the order of dimensions in memory that XLA:CPU's transforms need
explicit_types      shardings in types, taken out of what was traced with them
memory_spaces       arrays in the memory of the host, by their types
manual_bodies       bodies of shard_map, and their equations without its types
parts               collectives that become ops on a dimension of parts; imported by name
row_exchange        the collective that sends rows of any number, on all parts; imported by name
user_code           the arrays that user code reads and makes while it is traced
shardy              Shardy's passes inside of jaxlib: rules of ops, explicit collectives, layouts
compile             modules as bytes, and their compilation by a compiler without its devices
mpmd                Shardy:MPMD's passes inside of jaxlib
primitives          the primitives that JAX knows
versions            versions of jaxlib that are tested, and the flags that they know
process_wide        what is changed of JAX for the whole process
quiet               JAX started without the words of a plugin for absent devices
"""

from autoshard.compat.compile import (
    compile_bytecode,
    module_bytecode,
    stablehlo_of_hlo,
)
from autoshard.compat.default_order import in_default_order
from autoshard.compat.explicit_types import (
    RESHARD,
    explicit_sharding,
    no_other_mesh,
    plain_constant,
    said_axes,
    without_reshards,
    without_types,
)
from autoshard.compat.flash_kernels import (
    FLASH,
    FlashOptions,
    flash_output,
    flash_to_keys,
    flash_to_queries,
)
from autoshard.compat.fused_attention import (
    FUSED_ATTENTION,
    INSIDE_FUSED_ATTENTION,
    FusedAttention,
    bind_fused_attention,
    fused_attention,
    replaced_by,
    traced_without_gpu,
)
from autoshard.compat.jaxprs import (
    BODIES_OF_CALLS,
    array_facts,
    bind_checkpoint,
    bind_equation,
    called_jaxpr,
    called_jaxpr_of,
    closed,
    drop_dead_code,
    equation_context,
    equation_line,
    equation_scope,
    in_lax,
    is_literal,
    is_tracer,
    literal,
    live_part,
    loop_bodies,
    loops_are_inlined,
    opened,
    passed_through,
    run_program_order,
    scan_counts,
    shape_struct,
    with_derivative_of,
    with_inputs_held,
    without_refs,
)
from autoshard.compat.kernel_equations import (
    FFI,
    KERNELS,
    ON_CORES,
    PALLAS,
    bodies_of,
    interpreted,
    with_kernels,
    written_out,
)
from autoshard.compat.kernels import (
    COPIES,
    RANDOM_STATE,
    Access,
    Block,
    KernelCall,
    access_of,
    bind_foreign,
    bind_kernel,
    is_dropped,
    kernel_call,
    kernel_function,
)
from autoshard.compat.layout_primitives import (
    PRODUCTS,
    REMAT,
    Read,
    bind_reading,
    laid_out,
    run_reading,
)
from autoshard.compat.manual_bodies import (
    MappedCall,
    bind_plainly,
    has_batching_rule,
    mapped_call,
    no_mesh,
    plain_context,
)
from autoshard.compat.memory_spaces import (
    HOST_KIND,
    given_in_host,
    host_shape,
    in_host,
    is_transfer,
    is_type,
)
from autoshard.compat.mpmd import (
    MpmdFragment,
    MpmdMerge,
    partition_mpmd,
)
from autoshard.compat.primitives import (
    has_lowering,
    registered_primitives,
    single_device_effects,
    sparse_function,
)
from autoshard.compat.process_wide import no_user_lines
from autoshard.compat.ruled_calls import RULED, ruled_call
from autoshard.compat.shardy import (
    LoweredModule,
    LoweredOp,
    carried_sharding_rule,
    elements,
    integer_table,
    integers,
    is_block_argument,
    location_frames,
    lower_equations,
    make_collectives_explicit,
    parse_sharding_rule,
    partitionable_random_bits,
    propagated,
    set_sharding_rule,
    shardy_layout,
    shardy_mesh_axes,
    shardy_sharding_of,
    splat_integer,
    with_explicit_collectives,
    with_reshards,
)
from autoshard.compat.source_lines import (
    OWN_FOLDER,
    PACKAGE_FOLDER,
    called_function,
    is_own,
    library_line_of_error,
    source_line,
    source_lines,
    user_line_of_error,
    users_line,
)
from autoshard.compat.splash_kernels import (
    SPLASH,
    SplashOptions,
    causal_mask,
    local_mask,
    splash,
    splash_mask,
)
from autoshard.compat.told_kernels import Start, UntoldError, check_tellable
from autoshard.compat.user_code import (
    ARGUMENT,
    Change,
    Frame,
    Standing,
    arrays_of_user_code,
    in_checkpoint,
)
from autoshard.compat.versions import known_flags, warn_if_untested

__all__ = [
    "ARGUMENT",
    "BODIES_OF_CALLS",
    "COPIES",
    "FFI",
    "FLASH",
    "FUSED_ATTENTION",
    "HOST_KIND",
    "INSIDE_FUSED_ATTENTION",
    "KERNELS",
    "ON_CORES",
    "OWN_FOLDER",
    "PACKAGE_FOLDER",
    "PALLAS",
    "PRODUCTS",
    "RANDOM_STATE",
    "REMAT",
    "RESHARD",
    "RULED",
    "SPLASH",
    "Access",
    "Block",
    "Change",
    "FlashOptions",
    "Frame",
    "FusedAttention",
    "KernelCall",
    "LoweredModule",
    "LoweredOp",
    "MappedCall",
    "MpmdFragment",
    "MpmdMerge",
    "Read",
    "SplashOptions",
    "Standing",
    "Start",
    "UntoldError",
    "access_of",
    "array_facts",
    "arrays_of_user_code",
    "bind_checkpoint",
    "bind_equation",
    "bind_foreign",
    "bind_fused_attention",
    "bind_kernel",
    "bind_plainly",
    "bind_reading",
    "bodies_of",
    "called_function",
    "called_jaxpr",
    "called_jaxpr_of",
    "carried_sharding_rule",
    "causal_mask",
    "check_tellable",
    "closed",
    "compile_bytecode",
    "drop_dead_code",
    "elements",
    "equation_context",
    "equation_line",
    "equation_scope",
    "explicit_sharding",
    "flash_output",
    "flash_to_keys",
    "flash_to_queries",
    "fused_attention",
    "given_in_host",
    "has_batching_rule",
    "has_lowering",
    "host_shape",
    "in_checkpoint",
    "in_default_order",
    "in_host",
    "in_lax",
    "integer_table",
    "integers",
    "interpreted",
    "is_block_argument",
    "is_dropped",
    "is_literal",
    "is_own",
    "is_tracer",
    "is_transfer",
    "is_type",
    "kernel_call",
    "kernel_function",
    "known_flags",
    "laid_out",
    "library_line_of_error",
    "literal",
    "live_part",
    "local_mask",
    "location_frames",
    "loop_bodies",
    "loops_are_inlined",
    "lower_equations",
    "make_collectives_explicit",
    "mapped_call",
    "module_bytecode",
    "no_mesh",
    "no_other_mesh",
    "no_user_lines",
    "opened",
    "parse_sharding_rule",
    "partition_mpmd",
    "partitionable_random_bits",
    "passed_through",
    "plain_constant",
    "plain_context",
    "propagated",
    "registered_primitives",
    "replaced_by",
    "ruled_call",
    "run_program_order",
    "run_reading",
    "said_axes",
    "scan_counts",
    "set_sharding_rule",
    "shape_struct",
    "shardy_layout",
    "shardy_mesh_axes",
    "shardy_sharding_of",
    "single_device_effects",
    "source_line",
    "source_lines",
    "sparse_function",
    "splash",
    "splash_mask",
    "splat_integer",
    "stablehlo_of_hlo",
    "traced_without_gpu",
    "user_line_of_error",
    "users_line",
    "warn_if_untested",
    "with_derivative_of",
    "with_explicit_collectives",
    "with_inputs_held",
    "with_kernels",
    "with_reshards",
    "without_refs",
    "without_reshards",
    "without_types",
    "written_out",
]
