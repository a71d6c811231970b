"""Arrays and tensors as flat float32, or as bytes, which can be summed or gathered; and the way back into them."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from sa_atp.basics.arrays import ByteRows, Integers, Octets, Values
from sa_atp.basics.errors import UserError


def flat_float32(array: Any) -> tuple[Values, Callable[[Values], None] | None]:
    """An array as flat float32, without a copy where it is that already, and what writes the sum back into it; None: it is
    there by itself.

    Raises: UserError.
    """
    if isinstance(array, np.ndarray):
        if array.dtype not in (np.float32, np.float16):
            raise UserError(f"an array of {array.dtype} cannot be summed: expected float32 or float16")
        if not array.flags.writeable:
            raise UserError("an array that cannot be written to cannot be replaced by its sum: copy it first")
        if array.flags.c_contiguous and array.flags.aligned and array.dtype == np.float32:
            return array.reshape(-1), None
        _check_places(array.strides, array.shape)

        def write_array(values: Values) -> None:
            with np.errstate(over="ignore"):  # float16 has its own infinity
                array[...] = values.reshape(array.shape)

        return array.astype(np.float32, "C").reshape(-1), write_array
    if type(array).__module__.partition(".")[0] == "torch":
        tensor = cast(Any, array)
        name = str(tensor.dtype).removeprefix("torch.")
        layout = str(tensor.layout).removeprefix("torch.")
        dense = layout == "strided"
        if name not in ("float32", "float16", "bfloat16") or tensor.device.type != "cpu" or not dense:
            raise UserError(
                f"a {'' if dense else layout + ' '}{name} tensor on {tensor.device} cannot be summed: "
                "expected a dense one of float32, float16 or bfloat16 on the CPU"
            )
        _check_places(tensor.stride(), tensor.shape)
        flat = tensor.detach().resolve_neg().float().reshape(-1).contiguous()
        if flat.data_ptr() == tensor.data_ptr():
            return flat.numpy(), None
        return flat.numpy(), lambda values: tensor.detach().copy_(flat.reshape(tensor.shape))
    raise UserError(f"a {type(array).__name__} cannot be summed: expected a NumPy array or a torch tensor")


def _check_places(strides: Sequence[int], shape: Sequence[int]) -> None:
    """Raises: UserError: values share memory, as those of an expanded tensor do, so that it cannot hold a sum."""
    if 0 not in shape and any(step == 0 and size > 1 for step, size in zip(strides, shape, strict=True)):
        raise UserError(
            f"an array of shape {tuple(shape)} whose values share memory cannot be replaced by its sum: copy it first"
        )


def flat_bytes(array: Any) -> tuple[str, Octets]:
    """The name of an array's type, and its bytes in flat order: without a copy where they lie like that.

    Raises: UserError: it has no bytes that another process can read, or is not in this host's memory.
    """
    if isinstance(array, np.ndarray):
        if array.dtype.hasobject:
            raise UserError(f"an array of {array.dtype} cannot be gathered: expected values of a fixed size")
        return str(array.dtype), np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if type(array).__module__.partition(".")[0] == "torch":
        tensor = cast(Any, array)
        kind, layout = (str(each).removeprefix("torch.") for each in (tensor.dtype, tensor.layout))
        if tensor.device.type != "cpu" or layout != "strided":
            raise UserError(f"a {layout} tensor on {tensor.device} cannot be gathered: expected a dense one on the CPU")
        import torch  # which is there: the tensor is one of its

        flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
        return kind, flat.view(torch.uint8).numpy()
    raise UserError(f"a {type(array).__name__} cannot be gathered: expected a NumPy array or a torch tensor")


def gathered_like(array: Any, ranks: int) -> tuple[Any, ByteRows]:
    """A new array for the parts of all ranks, of the shape (ranks, *array.shape), and its memory: uint8[ranks, bytes]."""
    if isinstance(array, np.ndarray):
        out = np.empty((ranks, *array.shape), array.dtype)
        return out, out.reshape(-1).view(np.uint8).reshape(ranks, array.nbytes)
    found = array.detach().new_empty((ranks, *array.shape))
    return found, flat_bytes(found)[1].reshape(ranks, array.numel() * array.element_size())


def words_of_bytes(part: Octets) -> Integers:
    """Bytes as int32, filled up with zeros: without a copy where they can be read as such."""
    if part.size % 4 == 0 and part.flags.writeable and part.ctypes.data % 4 == 0:  # kernels take what is writeable
        return part.view(np.int32)
    words = np.zeros(-(-part.size // 4), np.int32)
    words.view(np.uint8)[: part.size] = part
    return words
