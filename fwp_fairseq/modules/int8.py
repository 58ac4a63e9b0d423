"""Linear layers in eight bits, for decoding on a CPU."""

import warnings

import torch
from torch import Tensor, nn

from .large_linears import LargeLinear, replace_

_LARGEST_INT8 = 127
# PyTorch asks every argument of an operator for __torch_function__. Packed weights lack it, and their answer, an
# exception, takes longer than a product with few rows; this value says that there is nothing to call.
torch.ScriptObject.__torch_function__ = torch._C._disabled_torch_function_impl
# The operator itself, without PyTorch's look at each argument for what cannot be here.
_linear = torch.ops.quantized.linear_dynamic._op


class Int8Linear(LargeLinear):
    """y = W x + b with W and x in eight bits, by PyTorch's own kernels.

    Each row of W has a scale of its own, found once; x has one scale and one zero point per call. Sums are exact
    integers; the result is float32. There is nothing to train. ``weight`` and ``bias`` give what is computed with in
    float32, for code that reads them.

    Cost: a quarter of the memory of W, and of the time to read it. With AMX half of the memory, because oneDNN keeps W
    in two forms.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        weight = linear.weight.detach()
        if weight.dtype != torch.float32:
            raise ValueError(f"the model is {weight.dtype}, expected torch.float32: eight bits replace half precision")
        scales = weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny) / _LARGEST_INT8
        zeros = torch.zeros_like(scales, dtype=torch.int64)
        with warnings.catch_warnings():
            # PyTorch plans to move these tensors to another package (github.com/pytorch/pytorch/issues/184982).
            warnings.filterwarnings("ignore", ".*quantize_per_channel")
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = self.pack(whole, None if linear.bias is None else linear.bias.detach())

    def pack(self, weight: Tensor, bias: Tensor | None) -> torch.ScriptObject:
        """Lays weights out for oneDNN's kernels where the processor has AMX, else for those that PyTorch would take."""
        quantized = torch.backends.quantized
        before = quantized.engine
        # With AMX, oneDNN's take half of FBGEMM's time for 64 rows and more, and without it up to twice as much.
        if torch.cpu._is_amx_tile_supported() and "onednn" in quantized.supported_engines:
            quantized.engine = "onednn"
        try:
            return torch.ops.quantized.linear_prepack(weight, bias)
        finally:
            quantized.engine = before

    def unpacked(self) -> tuple[Tensor, Tensor | None]:
        return torch.ops.quantized.linear_unpack(self.packed)

    def forward(self, x: Tensor) -> Tensor:
        if not x.numel():  # from which oneDNN takes a dimension away
            return x.new_empty(*x.shape[:-1], self.out_features)
        # Seven bits of x, because two products of eight overflow the sums of CPUs without VNNI.
        return _linear(x, self.packed, True)

    @property
    def weight(self) -> Tensor:
        return self.unpacked()[0].dequantize()

    @property
    def bias(self) -> Tensor | None:
        return self.unpacked()[1]


def quantize_(model: nn.Module) -> list[str]:
    """Puts :class:`Int8Linear` in place of a model's large linear layers; returns their names.

    Embeddings, norms, attention itself and small layers stay float32. ValueError for a model that is not float32.
    """
    return replace_(model, Int8Linear)
