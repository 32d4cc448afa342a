"""The bits of floating-point numbers: sign, exponent, mantissa, and what a number becomes when it is stored.

A number with exponent field e and mantissa field m, of p bits, is ``(-1)^s * 2^(e - bias) * (1 + m / 2^p)``; with e = 0
it is subnormal: ``(-1)^s * 2^(1 - bias) * m / 2^p`` (IEEE 754-2019, section 3.4; BF16 takes FP32's exponent).
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class FloatType:
    """A number format, read off ``torch.finfo``."""

    name: str
    dtype: torch.dtype

    @property
    def mantissa_bits(self) -> int:
        return -int(torch.tensor(torch.finfo(self.dtype).eps).log2())

    @property
    def exponent_bits(self) -> int:
        return torch.finfo(self.dtype).bits - 1 - self.mantissa_bits

    @property
    def fields(self) -> tuple[int, int, int]:
        """Bits of sign, exponent and mantissa."""
        return 1, self.exponent_bits, self.mantissa_bits

    def stored(self, value: float) -> float:
        """What ``value`` is after it was written in this type: rounded, 0 or infinite."""
        return torch.tensor(value, dtype=torch.float64).to(self.dtype).item()

    def bits(self, value: float) -> str:
        """The stored bits as 0 and 1, sign first."""
        size = torch.finfo(self.dtype).bits
        whole = torch.int32 if size == 32 else torch.int16
        number = torch.tensor(value, dtype=torch.float64).to(self.dtype).view(whole).item()
        return f"{number % 2**size:0{size}b}"


FP32, FP16, BF16 = (
    FloatType(name, dtype)
    for name, dtype in (("FP32", torch.float32), ("FP16", torch.float16), ("BF16", torch.bfloat16))
)
FLOAT_TYPES = (FP32, FP16, BF16)
