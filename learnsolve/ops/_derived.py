"""What is kept with the values of a matrix."""

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve._plain import plain_tensors
from learnsolve.csr import CSR
from learnsolve.ops._autograd import tracked


def kept_with_values(A: CSR, name: str, make: Callable[[], Tensor]) -> Tensor:
    """`make()`, a function of A's values, not to be changed. It is kept with `A` while its values do not
    require grad and do not change (torch notices, except for changes through ``values.data``). Nothing is
    kept for trainable values: fused optimizers change parameters without a new version. Nor for values on a
    device: other streams would have to wait for it, and a graph would hold it indefinitely."""
    values = A.values
    if (
        torch.compiler.is_dynamo_compiling()
        or values.requires_grad
        or tracked(values)
        or values.is_inference()
        or not values.is_cpu
    ):
        return make()
    kept = A._derived.get(name)
    state = (values.data_ptr(), values._version)
    if kept is None or kept[0] is not values or kept[1] != state:
        with plain_tensors():
            kept = A._derived[name] = (values, state, make())
    return kept[2]
