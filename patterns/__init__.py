"""The built-in rules, one file each. Installed as `fuseopt.patterns`."""

if __name__ != "fuseopt.patterns":
    raise ImportError(f"import the built-in rules as fuseopt.patterns, not as {__name__}")

# Where two rules fit equally well, the one of the earlier module gives its name.
MODULES = (
    "layer_norm",
    "rms_norm",
    "group_norm",
    "embedding_norm",
    "residual_norm",
    "norm_activation",
    "group_norm_silu",
    "softmax",
    "masked_softmax",
    "rope",
    "activation",
    "bias_activation",
    "gated_activation",
    "softcap",
    "linear_cross_entropy",
    "pointwise",
)
