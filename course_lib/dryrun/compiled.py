"""``torch.compile`` in a dry run: what the compiler keeps for the backward pass, and what its kernels write.

The compiler traces a module once, forward and backward pass together, and cuts that graph where least has to be kept:
what is cheap to compute is computed again (functorch's min-cut partitioner). Which tensors cross the cut is decided
before any kernel is made, so no card is needed, and it is the compiler's own code that decides here.

Then it makes one kernel out of operators that follow one another, element by element, and what passes between them is
never written. That is imitated: of the operators that the partitioner calls fusible, only those write a tensor whose
result leaves the graph, is smaller than what they read (a sum), or is read by an operator that is not, such as a matrix
product. Where a kernel may write over what it has just read is not imitated; a pass may take a little less than here.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from course_lib.errors import CourseError

_FUSIBLE_TOO = ("cat", "stack")  #: the partitioner does not compute them again, but kernels have them inside
_VIEWS_TOO = ("getitem", "view", "_unsafe_view", "reshape", "transpose", "unbind")


def compiled(module: nn.Module) -> nn.Module:
    """``module`` as ``torch.compile(module)`` runs it: tensors in, tensors out, no graph break.

    Use it in place of ``module`` in the step of a :func:`~course_lib.dryrun.dry_run`. Parameters stay the module's
    own. Shapes and types of the first call are those of every call. On the meta device PyTorch traces some composite
    operators (nll_loss, where with a number) without their gradient, and ``backward`` then says so: write a
    cross-entropy as the sum of log-probabilities times (index == target), which is what the compiler makes of it.

    Raises:
        CourseError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise CourseError(f"compiled: got {type(module).__name__}, expected a module; wrap a function in one")
    from functorch.compile import aot_module, min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    return aot_module(
        module,
        fw_compiler=_as_kernels,
        bw_compiler=_as_kernels,
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
    )


def _as_kernels(graph: fx.GraphModule, _inputs: Any) -> Callable[[list[Any]], Any]:
    kernels = _Kernels(graph)

    def run(arguments: list[Any]) -> Any:
        try:
            return kernels.boxed_run(arguments)
        finally:
            kernels.env = {}  # or it would hold what it returned

    run._boxed_call = True  # type: ignore[attr-defined] # it frees each argument after its last use
    return run


class _Unwritten(NamedTuple):
    """In place of a tensor that is never written: what is read where it is computed."""

    reads: tuple[Any, ...]


class _Kernels(fx.Interpreter):
    """Runs a graph operator by operator, but makes the tensors of fused kernels only."""

    def __init__(self, graph: fx.GraphModule) -> None:
        from torch._functorch.partitioners import get_default_op_list

        super().__init__(graph)
        self.kinds = get_default_op_list()
        self.written = {node for node in graph.graph.nodes if self._fusible(node) and self._is_written(node)}

    def run_node(self, node: fx.Node) -> Any:
        if not self._fusible(node) and not self._is_view(node):
            return super().run_node(node)
        reads = [self.env[each] for each in node.all_input_nodes]
        if node in self.written:
            return tree_map_only(Tensor, _empty, node.meta["val"])
        if self._is_view(node) and not any(isinstance(each, _Unwritten) for each in reads):
            return super().run_node(node)
        return _Unwritten(tuple(reads))

    def _fusible(self, node: fx.Node) -> bool:
        known = self.kinds.is_fusible(node) or _name(node) in _FUSIBLE_TOO
        return node.op == "call_function" and known and not self._is_view(node)

    def _is_view(self, node: fx.Node) -> bool:
        return node.op == "call_function" and (self.kinds.is_view(node) or _name(node) in _VIEWS_TOO)

    def _is_written(self, node: fx.Node) -> bool:
        return _size(node) < max(map(_size, node.all_input_nodes), default=0) or any(
            not self._fusible(reader) for reader in self._readers(node)
        )

    def _readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """Who reads its result, as it is or as a view."""
        for user in node.users:
            if self._is_view(user):
                yield from self._readers(user)
            else:
                yield user


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", ""))


def _size(node: fx.Node) -> int:
    return sum(each.numel() for each in tree_leaves(node.meta.get("val")) if isinstance(each, Tensor))


def _empty(like: Tensor) -> Tensor:
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)
