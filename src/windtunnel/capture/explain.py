"""Turn a failure of the user's script into one plain sentence beside their own traceback.

    exception ──> (what happened, what to do)

Known causes only; anything else is left to the traceback, which is always shown.
"""

from __future__ import annotations

import re

__all__ = ["explain"]

_RULES: tuple[tuple[str, str], ...] = (
    (
        r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)",
        "the data does not fit the model: a layer that takes {3} features was given {2};"
        " compare the dataset's last dimension ({2}) with the layer's input size ({3})",
    ),
    (
        r"Given normalized_shape=\[(.*?)\], expected input with shape \[.*?\], but got input of size ?\[(.*?)\]",
        "the data does not fit the model: a normalisation over [{1}] was given a tensor of size [{2}]",
    ),
    (
        r"Given groups=(\d+), weight of size (\[.*?\]), expected input(\[.*?\]) to have (\d+) channels, but got (\d+) channels",
        "the data does not fit the model: a convolution that takes {4} channels was given {5}",
    ),
    (
        r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        "two tensors that must have the same size have {1} and {2}",
    ),
    (
        r"expected m1 and m2 to have the same dtype, but got: (.+?) != (.+)",
        "two tensors of one matrix product have different types, {1} and {2}: cast one of them, or use autocast",
    ),
    (
        r"(?:mat1 and mat2 must have the same dtype|expected scalar type .* but found|self and mat2 must have the same dtype)",
        "two tensors of one operator have different types: cast one of them, or use autocast",
    ),
    (
        r"Expected all tensors to be on the same device, but found at least two devices, (\S+) and (\S+?)!",
        "one operator was given tensors of two devices, {1} and {2}: move the {2} one with .to({1!r})",
    ),
    (
        r"No module named '(.+?)'",
        "the script needs the package {1!r}, which is not installed in this Python: pip install it, or, if it only"
        " exists for accelerators, guard its import",
    ),
    (
        r"world[_ ]size.*?\(?(\d+)\)?.*?(?:not divisible|is not divisible|must be divisible) by.*?\(?(\d+)\)?",
        "the parallel strategy does not fit the number of cards: world size {1} is not divisible by {2}",
    ),
    (
        r"(?:invalid|Invalid) parallel dims: (.*)",
        "the parallel strategy does not fit the number of cards: {1}",
    ),
    (
        r"there is no shape rule for (\S+)",
        "the operator {1} has no shape rule: register one with torch.library.register_fake({1!r})",
    ),
    (
        r"index (\d+) is out of bounds for dimension (\d+) with size (\d+)",
        "an index of {1} was used on a dimension of size {3}",
    ),
    (
        r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
        "the model's output has {1} rows and the labels have {2}: the dataset's labels do not fit the model's output",
    ),
)


def explain(error: BaseException) -> str:
    """One sentence about a script's exception."""
    text = " ".join(str(error).split())
    for pattern, sentence in _RULES:
        match = re.search(pattern, text)
        if match:
            return _fill(sentence, match)
    kind = type(error).__name__
    return f"the script raised {kind}: {text[:300]}" if text else f"the script raised {kind}"


def _fill(sentence: str, match: re.Match[str]) -> str:
    def group(found: re.Match[str]) -> str:
        text = match.group(int(found.group(1))) or ""
        return repr(text) if found.group(2) else text

    return re.sub(r"\{(\d)(!r)?\}", group, sentence)
