"""Activation functions and their derivatives, as PyTorch computes them."""

from __future__ import annotations

from typing import Any

from fuseopt.ir.expr import Expr
from fuseopt.ops.build import (
    absolute,
    erf,
    exp,
    expm1,
    log1p,
    maximum,
    minimum,
    reshape,
    sigmoid,
    slice_,
    tanh,
    where,
)
from fuseopt.ops.declare import Call, T, op, sample

X = T((4, 6), low=-8.0, high=8.0)
G = T((4, 6))

SQRT_HALF = 0.7071067811865476
SQRT_2_OVER_PI = 0.7978845608028654
GELU_CUBIC = 0.044715


@op("aten.sigmoid.default", samples=[sample(X)])
def sigmoid_(call: Call, x: Expr) -> Expr:
    """1 / (1 + e ** -x)."""
    return sigmoid(*call.floats(x))


@op("aten.relu.default", samples=[sample(X), sample(T((4, 6), "i", -9, 9))])
def relu(call: Call, x: Expr) -> Expr:
    """max(x, 0); NaN stays NaN."""
    (x,) = call.promoted(x)
    return maximum(x, 0)


@op("aten.relu6.default", samples=[sample(X)])
def relu6(call: Call, x: Expr) -> Expr:
    """x kept between 0 and 6."""
    (x,) = call.promoted(x)
    return minimum(maximum(x, 0), 6)


@op("aten.silu.default", samples=[sample(X)])
def silu(call: Call, x: Expr) -> Expr:
    """x * sigmoid(x)."""
    (x,) = call.floats(x)
    return x / (1.0 + exp(-x))


@op("aten.gelu.default", samples=[sample(X), sample(X, approximate="tanh")])
def gelu(call: Call, x: Expr, approximate: str = "none") -> Expr:
    """x * Phi(x), Phi the normal distribution function or its tanh approximation."""
    (x,) = call.floats(x)
    if approximate == "tanh":
        inner = SQRT_2_OVER_PI * (x + GELU_CUBIC * (x * x * x))
        return 0.5 * x * (1.0 + tanh(inner))
    return x * 0.5 * (1.0 + erf(x * SQRT_HALF))


@op("aten.hardtanh.default", samples=[sample(X), sample(X, -2.0, 0.5)])
def hardtanh(call: Call, x: Expr, low: Any = -1.0, high: Any = 1.0) -> Expr:
    """x kept between two numbers."""
    x, low, high = call.held(x, low, high)
    return minimum(maximum(x, low), high)


@op("aten.hardsigmoid.default", samples=[sample(X)])
def hardsigmoid(call: Call, x: Expr) -> Expr:
    """relu6(x + 3) / 6."""
    return _relu6(call.floats(x)[0] + 3.0) / 6.0


@op("aten.hardswish.default", samples=[sample(X)])
def hardswish(call: Call, x: Expr) -> Expr:
    """x * relu6(x + 3) / 6."""
    (x,) = call.floats(x)
    return x * _relu6(x + 3.0) / 6.0


def _relu6(x: Expr) -> Expr:
    return minimum(maximum(x, 0.0), 6.0)


@op("aten.elu.default", samples=[sample(X), sample(X, 1.5, 1.1, 0.7)])
def elu(
    call: Call, x: Expr, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Expr:
    """scale * x above zero, scale * alpha * (e ** (input_scale * x) - 1) below."""
    (x,) = call.floats(x)
    return where(x > 0.0, x * scale, expm1(x * input_scale) * (alpha * scale))


@op("aten.selu.default", samples=[sample(X)])
def selu(call: Call, x: Expr) -> Expr:
    """The self-normalising elu (Klambauer et al. 2017)."""
    return elu(call, x, 1.6732632423543772, 1.0507009873554805)


@op("aten.celu.default", samples=[sample(X), sample(X, 1.5)])
def celu(call: Call, x: Expr, alpha: float = 1.0) -> Expr:
    """x above zero, alpha * (e ** (x / alpha) - 1) below."""
    return elu(call, x, alpha, 1.0, 1.0 / alpha)


@op("aten.leaky_relu.default", samples=[sample(X), sample(X, 0.2)])
def leaky_relu(call: Call, x: Expr, slope: float = 0.01) -> Expr:
    """x above zero, slope * x below."""
    (x,) = call.floats(x)
    return where(x > 0.0, x, x * slope)


@op("aten.softplus.default", samples=[sample(X), sample(X, 2.0, 5.0)])
def softplus(call: Call, x: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    """log(1 + e ** (beta * x)) / beta; x itself where beta * x is above the threshold."""
    (x,) = call.floats(x)
    scaled = x * beta
    return where(scaled > threshold, x, log1p(exp(scaled)) / beta)


@op("aten.mish.default", samples=[sample(X)])
def mish(call: Call, x: Expr) -> Expr:
    """x * tanh(log(1 + e ** x))."""
    (x,) = call.floats(x)
    return x * tanh(log1p(exp(x)))


@op("aten.log_sigmoid.default", samples=[sample(X)])
def log_sigmoid(call: Call, x: Expr) -> Expr:
    """log(sigmoid(x)) without overflow."""
    return _log_sigmoid(*call.floats(x))


@op("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(call: Call, x: Expr) -> tuple[Expr | None, ...]:
    """log(sigmoid(x)), and a buffer that only the CPU's own backward reads."""
    return _log_sigmoid(*call.floats(x)), None


def _log_sigmoid(x: Expr) -> Expr:
    return minimum(x, 0.0) - log1p(exp(-absolute(x)))


@op("aten.threshold.default", samples=[sample(X, 0.5, -2.0)])
def threshold(call: Call, x: Expr, limit: Any, value: Any) -> Expr:
    """x where it is above the limit (or NaN), else a number."""
    x, limit, value = call.held(x, limit, value)
    return where(x <= limit, value, x)


@op("aten.hardshrink.default", samples=[sample(X)])
def hardshrink(call: Call, x: Expr, lambd: float = 0.5) -> Expr:
    """Zero within lambd of zero, x elsewhere."""
    (x,) = call.floats(x)
    return where((x >= -lambd) & (x <= lambd), 0.0, x)


@op("aten.softshrink.default", samples=[sample(X)])
def softshrink(call: Call, x: Expr, lambd: float = 0.5) -> Expr:
    """x moved by lambd towards zero, stopping there; NaN stays NaN."""
    (x,) = call.floats(x)
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0))


@op("aten._prelu_kernel.default", "aten.prelu.default")
def prelu(call: Call, x: Expr, weight: Expr) -> Expr:
    """x above zero, weight * x below; the weight runs along dimension 1."""
    x, weight = call.promoted(x, weight)
    if call.target == "aten.prelu.default" and weight.shape and x.rank > 2:
        weight = reshape(weight, (weight.shape[0], *(1,) * (x.rank - 2)))
    return where(x > 0.0, x, x * weight)


@op("aten.glu.default", samples=[sample(T((4, 6)), -1), sample(T((4, 6)), 0)])
def glu(call: Call, x: Expr, dim: int = -1) -> Expr:
    """The first half along a dimension times the sigmoid of the second."""
    (x,) = call.floats(x)
    half = call.shape[dim]
    return slice_(x, dim, 0, half) * sigmoid(slice_(x, dim, half, half))


# --- derivatives -----------------------------------------------------------------------------


@op("aten.sigmoid_backward.default", samples=[sample(G, T((4, 6), low=0.0, high=1.0))])
def sigmoid_backward(call: Call, grad: Expr, y: Expr) -> Expr:
    """Gradient of sigmoid from its output y."""
    grad, y = call.floats(grad, y)
    return grad * (1.0 - y) * y


@op("aten.tanh_backward.default", samples=[sample(G, T((4, 6), low=-1.0, high=1.0))])
def tanh_backward(call: Call, grad: Expr, y: Expr) -> Expr:
    """Gradient of tanh from its output y."""
    grad, y = call.floats(grad, y)
    return grad * (1.0 - y * y)


@op("aten.threshold_backward.default", samples=[sample(G, X, 0.5)])
def threshold_backward(call: Call, grad: Expr, x: Expr, limit: float) -> Expr:
    """Gradient of threshold (and of relu, from its input or output)."""
    grad, x = call.promoted(grad, x)
    return where(x <= limit, 0, grad)


@op("aten.silu_backward.default", samples=[sample(G, X)])
def silu_backward(call: Call, grad: Expr, x: Expr) -> Expr:
    """Gradient of silu."""
    grad, x = call.floats(grad, x)
    s = sigmoid(x)
    return grad * s * (1.0 + x * (1.0 - s))


@op("aten.gelu_backward.default", samples=[sample(G, X), sample(G, X, approximate="tanh")])
def gelu_backward(call: Call, grad: Expr, x: Expr, approximate: str = "none") -> Expr:
    """Gradient of gelu."""
    grad, x = call.floats(grad, x)
    if approximate == "tanh":
        t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * (x * x * x)))
        slope = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * (x * x))
        return grad * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
    density = exp(-0.5 * (x * x)) * (SQRT_HALF * SQRT_2_OVER_PI * SQRT_HALF)
    return grad * (0.5 * (1.0 + erf(x * SQRT_HALF)) + x * density)


@op("aten.hardtanh_backward.default", samples=[sample(G, X, -1.0, 1.0)])
def hardtanh_backward(call: Call, grad: Expr, x: Expr, low: float, high: float) -> Expr:
    """Gradient of hardtanh."""
    grad, x = call.promoted(grad, x)
    return where((x <= low) | (x >= high), 0.0, grad)


@op("aten.hardsigmoid_backward.default", samples=[sample(G, X)])
def hardsigmoid_backward(call: Call, grad: Expr, x: Expr) -> Expr:
    """Gradient of hardsigmoid."""
    grad, x = call.floats(grad, x)
    return where((x > -3.0) & (x < 3.0), grad / 6.0, 0.0)


@op("aten.hardswish_backward.default", samples=[sample(G, X)])
def hardswish_backward(call: Call, grad: Expr, x: Expr) -> Expr:
    """Gradient of hardswish."""
    grad, x = call.floats(grad, x)
    return where(x < -3.0, 0.0, where(x <= 3.0, grad * (x / 3.0 + 0.5), grad))


@op("aten.leaky_relu_backward.default", samples=[sample(G, X, 0.2, False)])
def leaky_relu_backward(call: Call, grad: Expr, x: Expr, slope: float, is_result: bool) -> Expr:
    """Gradient of leaky_relu; the sign of x and of the result are the same."""
    grad, x = call.floats(grad, x)
    return where(x > 0.0, grad, grad * slope)


@op("aten.elu_backward.default", samples=[sample(G, 1.5, 1.1, 0.7, False, X)])
def elu_backward(
    call: Call, grad: Expr, alpha: float, scale: float, input_scale: float, is_result: bool, x: Expr
) -> Expr:
    """Gradient of elu, from its input or its result."""
    grad, x = call.floats(grad, x)
    if is_result:
        below = grad * input_scale * (x + alpha * scale)
    else:
        below = grad * (input_scale * alpha * scale) * exp(x * input_scale)
    return where(x <= 0.0, below, grad * scale)


@op("aten.softplus_backward.default", samples=[sample(G, X, 2.0, 5.0)])
def softplus_backward(call: Call, grad: Expr, x: Expr, beta: float, threshold: float) -> Expr:
    """Gradient of softplus."""
    grad, x = call.floats(grad, x)
    scaled = x * beta
    z = exp(scaled)
    return where(scaled > threshold, grad, grad * z / (z + 1.0))


@op("aten.mish_backward.default", samples=[sample(G, X)])
def mish_backward(call: Call, grad: Expr, x: Expr) -> Expr:
    """Gradient of mish."""
    grad, x = call.floats(grad, x)
    t = tanh(log1p(exp(x)))
    return grad * (t + x * sigmoid(x) * (1.0 - t * t))


@op("aten.log_sigmoid_backward.default", samples=[sample(G, X, T((4, 6), low=0.0, high=1.0))])
def log_sigmoid_backward(call: Call, grad: Expr, x: Expr, buffer: Expr) -> Expr:
    """Gradient of log_sigmoid from e ** -|x|, which the forward pass saves on a CPU."""
    grad, x, z = call.floats(grad, x, buffer)
    # 1 - sigmoid(x), written so that neither sign of x overflows.
    one, zero, minus = (call.number(n, x.dtype) for n in (1.0, 0.0, -1.0))
    return grad * (where(x < 0.0, one, zero) - where(x < 0.0, one, minus) * (z / (1.0 + z)))
