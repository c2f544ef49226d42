"""What PyTorch and MindSpore call the same thing, as tables; compare/framework_names.py reads names by them.

There is one word for each meaning, PyTorch's where it has one. A line here is a fact about a framework; the names that a
user's program gives its own parts belong in a mapping file.
"""

from __future__ import annotations

__all__ = [
    "APIS",
    "API_PREFIXES",
    "CLASSES",
    "FRAMEWORKS",
    "MINDSPORE",
    "MINDSPORE_APIS",
    "PARAMETERS",
    "PYTORCH",
    "WRAPPERS",
]

PYTORCH, MINDSPORE = "pytorch", "mindspore"
FRAMEWORKS = {PYTORCH: "PyTorch", MINDSPORE: "MindSpore", "mindtorch": "MindSpore"}

# Every module that a function can be called through: the function counts, not the module.
API_PREFIXES = frozenset(
    "Functional Tensor Torch Aten NPU VF Mint MintFunctional Primitive Distributed MintDistributed MindSpeed Jit".split()
)

PARAMETERS = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}

# In lower case.
CLASSES = {
    "dense": "linear",
    "sequentialcell": "sequential",
    "celllist": "modulelist",
    "celldict": "moduledict",
    "conv1dtranspose": "convtranspose1d",
    "conv2dtranspose": "convtranspose2d",
    "conv3dtranspose": "convtranspose3d",
    "hswish": "hardswish",
    "hsigmoid": "hardsigmoid",
    "hshrink": "hardshrink",
}

# Components of a path that only wrap another module; ignored anywhere in it.
WRAPPERS = frozenset(
    "_backbone _orig_mod _fsdp_wrapped_module _checkpoint_wrapped_module _fpw_module _forward_module".split()
)

# Lower-case letters and digits only; "_" at the end marks an in-place operation.
APIS = {
    "truediv": "div",
    "rtruediv": "div",
    "divide": "div",
    "realdiv": "div",
    "floordivide": "floordiv",
    "radd": "add",
    "rsub": "sub",
    "subtract": "sub",
    "rmul": "mul",
    "multiply": "mul",
    "rmatmul": "matmul",
    "bmm": "matmul",
    "batchmatmul": "matmul",
    "mm": "matmul",
    "rpow": "pow",
    "iadd": "add_",
    "isub": "sub_",
    "imul": "mul_",
    "itruediv": "div_",
    "negative": "neg",
    "absolute": "abs",
    "equal": "eq",
    "notequal": "ne",
    "greater": "gt",
    "greaterequal": "ge",
    "less": "lt",
    "lessequal": "le",
    "dense": "linear",
    "bidense": "bilinear",
    "swapaxes": "permute",
    "swapdims": "permute",
    "transpose": "permute",
    "concat": "cat",
    "concatenate": "cat",
    "expanddims": "unsqueeze",
    "reducesum": "sum",
    "reducemean": "mean",
    "reducemax": "amax",
    "reducemin": "amin",
    "sumext": "sum",
    "meanext": "mean",
    "clipbyvalue": "clamp",
    "clip": "clamp",
    "layernormext": "layernorm",
    "softmaxext": "softmax",
    "geluext": "gelu",
    "scaleddotproductattention": "attention",
    "flashattentionscore": "attention",
    "npufusionattention": "attention",
    "flashattention": "attention",
    "npurmsnorm": "rmsnorm",
    "npuswiglu": "swiglu",
    "npurotarymul": "rotary",
    "rotarypositionembedding": "rotary",
    "view": "reshape",
    "viewas": "reshape",
    "broadcastto": "expand",
    "getitem": "slice",
}

# Where a word of MindSpore's own functions means something else in PyTorch.
MINDSPORE_APIS = {
    "gatherelements": "gather",
    "gatherd": "gather",
    "gather": "indexselect",
    "tile": "repeat",
    "cast": "to",
    "astype": "to",
}
