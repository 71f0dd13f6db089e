"""log, exp, tanh and the logistic function in float32, as polynomials that the compiler turns into vector instructions.

The usual minimax polynomials after reduction to [√½, √2) and [−½ ln 2, ½ ln 2], and a quotient of two for tanh; errors
stay below 2 units in the last place of the result (tanh: a few). NaN in is NaN out.
"""

from __future__ import annotations

import numpy as np

F0, F1, HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)

ROOT_HALF = np.float32(0.70710678)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
LOG2_E = np.float32(1.44269504)
LEAST_EXPONENT, MOST_EXPONENT = np.float32(-87.0), np.float32(87.0)
I23, I126, I127 = np.int32(23), np.int32(126), np.int32(127)
MANTISSA, HALF_BITS = np.int32(0x007FFFFF), np.int32(0x3F000000)

L0, L1, L2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
L3, L4, L5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
L6, L7, L8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)
X0, X1, X2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
X3, X4, X5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


def log(x: np.float32) -> np.float32:
    """ln x for x > 0, not denormal."""
    bits = np.float32(x).view(np.int32)
    exponent = np.float32(np.int32(np.int32(bits >> I23) - I126))
    m = np.int32(np.int32(bits & MANTISSA) | HALF_BITS).view(np.float32)
    low = m < ROOT_HALF
    exponent = exponent - (F1 if low else F0)
    m = (m + m if low else m) - F1
    square = m * m
    curve = ((((((((L0 * m + L1) * m + L2) * m + L3) * m + L4) * m + L5) * m + L6) * m + L7) * m + L8) * m * square
    return m + (curve + exponent * LN2_LOW - HALF * square) + exponent * LN2_HIGH


def exp(x: np.float32) -> np.float32:
    """e^x, with x kept within ±87."""
    x = LEAST_EXPONENT if x < LEAST_EXPONENT else x
    x = MOST_EXPONENT if x > MOST_EXPONENT else x
    scaled = x * LOG2_E
    whole = np.int32(scaled + (HALF if scaled > F0 else -HALF))
    n = np.float32(whole)
    r = x - n * LN2_HIGH - n * LN2_LOW
    curve = (((((X0 * r + X1) * r + X2) * r + X3) * r + X4) * r + X5) * r * r + r + F1
    return curve * np.int32(np.int32(whole + I127) << I23).view(np.float32)


def logistic(x: np.float32) -> np.float32:
    """1 / (1 + e^-x)."""
    return F1 / (F1 + exp(-x))


MOST_TANH = np.float32(7.90531110763549805)
T1, T3, T5 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)
T7, T9, T11 = np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11), np.float32(2.00018790482477e-13)
T13 = np.float32(-2.76076847742355e-16)
U0, U2 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
U4, U6 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)


def tanh(x: np.float32) -> np.float32:
    """(e^x − e^−x) / (e^x + e^−x)."""
    x = MOST_TANH if x > MOST_TANH else x
    x = -MOST_TANH if x < -MOST_TANH else x
    square = x * x
    above = x * ((((((T13 * square + T11) * square + T9) * square + T7) * square + T5) * square + T3) * square + T1)
    return above / (((U6 * square + U4) * square + U2) * square + U0)
