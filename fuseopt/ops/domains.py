"""Sample inputs that the declarations of elementwise ops share: the tests run each op on them."""

from __future__ import annotations

from fuseopt.ops.declare import T

X = T((4, 6))
ROW = T((6,))
POSITIVE = T((4, 6), low=0.05, high=6.0)
INTEGERS = T((4, 6), "i", -9, 9)
DIVISORS = T((6,), "i", 1, 9)
BOOLS = T((4, 6), "b")
