"""Linear layers in int8, for decoding on a CPU."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .large_linears import LargeLinear, replace_

_LARGEST_INT8 = 127
# PyTorch looks up __torch_function__ in every argument of an operator. Packed weights lack it, and the exception that
# this raises takes longer than a product with few rows. With this value, the look-up finds that nothing can be called.
torch.ScriptObject.__torch_function__ = torch._C._disabled_torch_function_impl
# The bare operators, which skip PyTorch's search of all arguments for __torch_function__.
_fixed = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32._op
_dynamic = torch.ops.quantized.linear_dynamic._op
_TINY = torch.finfo(torch.float32).tiny


class Int8Linear(LargeLinear):
    """Computes y = W x + b with W and x in int8, using PyTorch's own kernels.

    Each row of W is scaled once by its largest absolute value, and each row of x is scaled likewise in each call. So
    each row of y depends only on the same row of x, and NaN or infinity in one row stays there. Sums are exact
    integers; the result is float32. There are no trainable parameters. ``weight`` and ``bias`` return the rounded
    weights and the bias in float32, for code that reads them.

    Cost: a quarter of the memory of W, and of the time to read it; with AMX half of the memory, because oneDNN keeps W
    in two forms.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        weight = linear.weight.detach()
        if weight.dtype != torch.float32:
            raise ValueError(f"the model is {weight.dtype}, expected torch.float32: int8 replaces half precision")
        scales = weight.abs().amax(1).clamp(min=_TINY) / _LARGEST_INT8
        zeros = torch.zeros_like(scales, dtype=torch.int64)
        with warnings.catch_warnings():
            # PyTorch plans to move these tensors to another package (github.com/pytorch/pytorch/issues/184982).
            warnings.filterwarnings("ignore", ".*quantize_per_channel")
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.offset = None if linear.bias is None else linear.bias.detach()
        # oneDNN's kernel derives the scale of x from the range of all numbers in a call, which this row fixes at -1 to
        # 1.
        self.ends = F.pad(weight.new_tensor([[-1.0, 1.0]]), (0, self.in_features - 2))
        self.packed = self._prepacked(whole)

    @property
    def by_onednn(self) -> bool:
        """Returns True on processors with AMX.

        With AMX, oneDNN takes half of FBGEMM's time for 64 rows or more; without it, up to twice FBGEMM's time.
        """
        return torch.cpu._is_amx_tile_supported() and "onednn" in torch.backends.quantized.supported_engines

    def _prepacked(self, weight: Tensor) -> torch.ScriptObject:
        """Prepacks weights for oneDNN's kernels if the processor has AMX, else for those that PyTorch would choose."""
        quantized = torch.backends.quantized
        before = quantized.engine
        if self.by_onednn:
            quantized.engine = "onednn"
        try:
            return torch.ops.quantized.linear_prepack(weight, None)
        finally:
            quantized.engine = before

    def product(self, x: Tensor) -> Tensor:
        if not x.numel():  # oneDNN drops a dimension if x is empty
            return x.new_empty(*x.shape[:-1], self.out_features)
        largest = x.abs().amax(-1, keepdim=True).clamp_min(_TINY)
        y = self._product(x / largest)
        return y * largest if self.offset is None else torch.addcmul(self.offset, y, largest)

    def _product(self, x: Tensor) -> Tensor:
        """Computes W x for x in [-1, 1], with one scale for all rows."""
        if self.by_onednn:
            rows = torch.cat([x.reshape(-1, self.in_features).nan_to_num(), self.ends])
            return _dynamic(rows, self.packed, True)[:-1].view(*x.shape[:-1], self.out_features)
        # Without VNNI, x has seven bits, because the sum of two eight-bit products would overflow on these CPUs.
        largest = 127 if torch.cpu._is_vnni_supported() else 63
        return _fixed(x, 1 / largest, largest + 1, self.packed)

    @property
    def weight(self) -> Tensor:
        return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()

    @property
    def bias(self) -> Tensor | None:
        return self.offset


def quantize_(model: nn.Module) -> list[str]:
    """Replaces a model's large linear layers by :class:`Int8Linear`; returns their names.

    Embeddings, norms, the products of attention, softmax attention of the encoder and small layers stay float32. Raises
    ValueError if the model is not float32.
    """
    return replace_(model, Int8Linear)
