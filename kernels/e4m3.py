"""FP8 e4m3 ("fn") made of fp32 and back, in integers: Triton's own conversion is refused below compute
capability 8.9. Rounds to nearest, ties to even, as torch does.
"""

import triton
import triton.language as tl

__all__ = ["e4m3_to_fp32", "fp32_to_e4m3"]

# Exponents count from 127 in fp32, from 7 in e4m3; 23 bits of mantissa there, 3 here.
SHIFT = tl.constexpr(20)
REBIAS = tl.constexpr((127 - 7) << 23)
# The bits of the smallest normal number of e4m3, 2^-6, in fp32.
NORMAL_MIN = tl.constexpr((127 - 6) << 23)
# Added to a smaller number it leaves multiples of 2^-9 in the lowest bits: 2^14, whose ulp is 2^-9.
ROUNDER = tl.constexpr(16384.0)
ROUNDER_BITS = tl.constexpr((127 + 14) << 23)


@triton.jit
def fp32_to_e4m3(values):
    """fp32 of at most 448 in size (and 464, which rounds to it) as e4m3 in uint8."""
    bits = values.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    bits = bits & 0x7FFFFFFF
    # Half of what is cut off, or a little less where the last bit that stays is even.
    normal = (bits - REBIAS + 0x7FFFF + ((bits >> SHIFT) & 1)) >> SHIFT
    subnormal = (bits.to(tl.float32, bitcast=True) + ROUNDER).to(tl.int32, bitcast=True) - ROUNDER_BITS
    return (tl.where(bits < NORMAL_MIN, subnormal, normal) | sign).to(tl.uint8)


@triton.jit
def e4m3_to_fp32(codes):
    """e4m3 in uint8, none of them NaN, as fp32."""
    bits = codes.to(tl.int32) & 0x7F
    normal = ((bits << SHIFT) + REBIAS).to(tl.float32, bitcast=True)
    subnormal = bits.to(tl.float32) * 0.001953125
    sizes = tl.where(bits < 8, subnormal, normal)
    return tl.where((codes.to(tl.int32) & 0x80) != 0, -sizes, sizes)
