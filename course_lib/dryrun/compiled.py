"""``torch.compile`` in a dry run: what the compiler keeps for the backward pass.

The compiler traces a module once, forward and backward pass together, and cuts that graph where least has to be kept:
what is cheap to compute is computed again (functorch's min-cut partitioner). Which tensors cross the cut is decided
before any kernel is made, so no card is needed, and it is the compiler's own code that decides here.

The kernels are not made: operators run one by one. What lives within one pass is therefore that of eager code, and more
than fused kernels take; what lives from one pass to the other is exact.
"""

from functools import partial

from torch import nn

from course_lib.errors import CourseError


def compiled(module: nn.Module) -> nn.Module:
    """``module`` as ``torch.compile(module)`` runs it: tensors in, tensors out, no graph break.

    Use it in place of ``module`` in the step of a :func:`~course_lib.dryrun.dry_run`. Parameters stay the module's
    own; what it was called with first, shapes and types, it has to be called with again.

    Raises:
        CourseError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise CourseError(f"compiled: got {type(module).__name__}, expected a module; wrap a function in one")
    from functorch.compile import aot_module, min_cut_rematerialization_partition, nop
    from torch._inductor.decomposition import select_decomp_table

    return aot_module(
        module,
        fw_compiler=nop,
        bw_compiler=nop,
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
    )
