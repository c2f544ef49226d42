"""Explain a failure of the user's script in one plain sentence, shown beside the script's own traceback.

    exception ──> what happened, what to do

Only known causes are explained; the traceback is always shown. The patterns match the messages of torch, of the CUDA
kernels and of the shape rules that replace them.
"""

from __future__ import annotations

import re

__all__ = ["explain"]

_MODEL = "the data does not fit the model: "
_LABELS = "the labels do not fit the model's output: "
_STRATEGY = "the parallel strategy does not fit the number of devices: "
_DIVISION = "the parallel strategy does not divide the model evenly: "
_STATE_DICT = "the checkpoint does not fit the model: "
_TYPES = "two tensors of one operator have different types"
_FEATURES = (
    _MODEL
    + "a layer that takes {wants} features was given {got}; compare the dataset's last dimension ({got}) "
    "with the layer's input size ({wants})"
)

_ONLY_HERE = "; the script is not at fault: on the device it runs"

# (a pattern, a sentence that its named groups fill)
_RULES: tuple[tuple[str, str], ...] = (
    # -- sizes of data and model
    (r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wants>\d+)x\d+\)", _FEATURES),
    (r"must have same reduction dim, but got \[\d+, (?P<got>\d+)\] X \[(?P<wants>\d+), \d+\]", _FEATURES),
    (
        r"size mismatch, got input \((?P<a>[\dx]+)\), (?:mat|vec) \((?P<b>[\dx]+)\)",
        "{a} and {b} cannot be multiplied: the inner sizes must be equal",
    ),
    (
        r"first two dimensions of batch2 tensor to be: \[(?P<a>[\d, ]+)\] but got: \[(?P<b>[\d, ]+)\]",
        "the second factor of a batched product is [{b}, ...], but the first one needs [{a}, ...]",
    ),
    (
        r"Given normalized_shape=\[(?P<a>.*?)\].*?but got input of size ?(?:torch\.Size\()?\[(?P<b>.*?)\]",
        _MODEL + "a normalisation over [{a}] was given a tensor of size [{b}]",
    ),
    (
        r"expected input\[.*?\] to have (?P<a>\d+) channels, but got (?P<b>\d+) channels",
        _MODEL + "a convolution that takes {a} channels was given {b}",
    ),
    (
        r"^Invalid channel dimensions",
        _MODEL
        + "a convolution was given the wrong number of channels; compare dimension 1 of its input with its "
        "in_channels",
    ),
    (
        r"Expected (?P<a>\d+D.*?) input to (?P<op>conv\w+), but got input of size: \[(?P<b>.*?)\]",
        _MODEL + "{op} takes a {a} tensor and was given one of size [{b}]",
    ),
    (
        r"padded input size per channel: \((?P<a>.*?)\)\. Kernel size: \((?P<b>.*?)\)",
        _MODEL + "a convolution with a kernel of {b} was given an image of only {a}",
    ),
    (
        r"Given input size per channel: (?P<a>\[.*?\])\. Calculated output size .*too small",
        _MODEL + "a convolution was given an image of only {a}, smaller than its kernel",
    ),
    (
        r"running_mean should contain (?P<b>\d+) elements not (?P<a>\d+)",
        _MODEL + "a batch normalisation of {a} channels was given {b}",
    ),
    (
        r"more than 1 value per channel when training, got input size (?:torch\.Size\()?\[(?P<a>.*?)\]",
        "batch normalisation cannot train on one sample, an input of [{a}]: use a larger batch or "
        "drop_last=True",
    ),
    (
        r"input\.size\(-1\) must be equal to input_size\. Expected (?P<wants>\d+), got (?P<got>\d+)",
        _FEATURES,
    ),
    (r"expecting embedding dimension of (?P<wants>\d+), but got (?P<got>\d+)", _FEATURES),
    (
        r"einsum\(\): subscript (?P<i>\w) has size (?P<a>\d+) for .*? previously seen size (?P<b>\d+)",
        "an einsum was given {b} and {a} for the same letter {i}",
    ),
    (
        r"The size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\)",
        "two tensors that must have the same size have {a} and {b}",
    ),
    (
        r"broadcast a dimension .*? had (?:torch\.Size\()?\[(?P<b>.*?)\].*?broadcastable to \[(?P<a>.*?)\]",
        "tensors of [{a}] and [{b}] were combined, but neither can be broadcast to the size of the other",
    ),
    (
        r"Sizes of tensors must match except in dimension (?P<d>\d+)\. Expected (?:size )?(?P<a>\d+)"
        r"(?: in dimension \d+)? but got (?:size )?(?P<b>\d+)",
        "tensors concatenated along dimension {d} must agree in all other dimensions, but have {a} and {b}",
    ),
    (
        r"stack expects each tensor to be equal size, but got (?:torch\.Size\()?\[(?P<a>.*?)\]",
        "tensors stacked into a batch differ in size (the first is [{a}]): pad them, or pass a collate_fn",
    ),
    (
        r"shape '\[(?P<a>.*?)\]' is invalid for input of size (?P<b>\d+)",
        "a tensor of {b} elements cannot be viewed as [{a}]",
    ),
    (
        r"index (?P<a>\d+) is out of bounds for dimension \d+ with size (?P<b>\d+)",
        "an index of {a} was used on a dimension of size {b}",
    ),
    # -- labels
    (
        r"Expected input batch_size \((?P<a>\d+)\) to match target batch_size \((?P<b>\d+)\)",
        _LABELS + "the output has {a} rows and there are {b} labels",
    ),
    (
        r"Expected target size (?:torch\.Size\()?\[(?P<a>.*?)\]\)?, got (?:torch\.Size\()?\[(?P<b>.*?)\]",
        _LABELS + "labels of [{a}] were expected, but got [{b}]",
    ),
    (
        r"[Tt]arget size \((?:torch\.Size\()?\[(?P<b>.*?)\]\)?\) "
        r"(?:must be the same as|that is different to the) input size \((?:torch\.Size\()?\[(?P<a>.*?)\]",
        _LABELS + "the output is [{a}] and the labels are [{b}]",
    ),
    # -- types
    (
        r"expected m1 and m2 to have the same dtype, but got: (?P<a>\S+) != (?P<b>\S+)",
        _TYPES + ", {a} and {b}: cast one of them, or use autocast",
    ),
    (
        r"must have the same dtype, but got (?P<a>\S+) and (?P<b>\S+)",
        _TYPES + ", {a} and {b}: cast one of them, or use autocast",
    ),
    (
        r"expected scalar type (?P<a>\S+) but found (?P<b>\S+)",
        _TYPES + ", {a} and {b}: cast one of them, or use autocast",
    ),
    (
        r"Input type \((?P<a>.+?)\) and (?:bias|weight) type \((?P<b>.+?)\) should be the same",
        _TYPES + ", the input {a} and the layer {b}: cast one of them, or use autocast",
    ),
    (r"must have the same dtype", _TYPES + ": cast one of them, or use autocast"),
    (
        r"argument #1 'indices' to have one of the following scalar types: Long, Int; but got (?P<a>\S+)",
        "an embedding takes integers and was given {a}: call .long() on its input",
    ),
    (
        r"Expected dtype int32/int64 for index, but got (?P<a>\S+)",
        "integers are needed here, for example labels or indices, but got {a}: call .long() on them",
    ),
    # -- devices
    (
        r"on the same device, but found at least two devices, (?P<a>\S+) and (?P<b>\S+?)!",
        "one operator was given tensors on two devices, {a} and {b}: move model and data to the same device, "
        "for example with .to('cuda')",
    ),
    (
        r"can't convert (?P<a>\S+) device type tensor to numpy",
        "numpy cannot read a tensor on {a}: call .cpu() first",
    ),
    (
        r"Torch not compiled with (?P<a>CUDA|XPU|NPU) enabled",
        "the script asked for {a}, which is not the simulated device here, or asked for it in a process it "
        "started itself: choose another --device, and use --world-size instead of your own processes",
    ),
    (
        r"at start of device string: (?P<a>\w+)",
        "the script asked for the device {a}, but another one is simulated: choose it with --device",
    ),
    (
        r"Load backend failed, please make sure the backend:1 is correct",
        "the script asks for jit_level O2, which hands whole graphs to CANN, and CANN is not here: dry-run it with jit_level"
        " O0 or O1, or in PyNative mode",
    ),
    (
        r"invalid device ordinal",
        "the script uses a device this machine does not have: set --world-size or --nproc-per-node",
    ),
    (
        r"waits for the key 'rpc_prefix",
        "torch.distributed.rpc is not simulated, because its ranks run each other's functions: dry-run the training loop"
        " with DDP, FSDP or one device",
    ),
    # -- parallel strategy
    (
        r"[Ww]orld[_ ]?size\D*(?P<a>\d+).*?not (?:be )?divisible by (?P<b>.*\d.*)",
        _STRATEGY + "world size {a} is not divisible by {b}",
    ),
    (
        r"[Mm]esh should not be bigger than default world size (?P<a>\d+), but found (?P<b>\d+)",
        _STRATEGY
        + "a mesh of {b} ranks is larger than the world size of {a}; the product of its axes must be {a}",
    ),
    (
        r"[Ii]nvalid mesh_dim_names? \(?(?P<a>.+?),?\)? specified\. Valid mesh_dim_names are \[(?P<b>.*?)\]",
        "the mesh has no axis {a}: its axes are {b}",
    ),
    (
        r"does not divide equally across group size|must be the same size as output size times world size",
        _STRATEGY + "a tensor cannot be split into equal parts, one for each rank of its group",
    ),
    (r"[Ii]nvalid parallel dims: (?P<a>.*)", _STRATEGY + "{a}"),
    (
        r"(?P<a>num_\w+|num_query_groups|number of [\w ]+) \((?P<n>\d+)\) (?:must|should) be (?:a multiple(?: or"
        r" divisor)? of|divisible by) (?P<b>[\w ]+?) ?\((?P<m>\d+)\)",
        _DIVISION + "{a} is {n}, which is not a multiple of {b} ({m})",
    ),
    (
        r"num_layers should be divisible by pipeline_model_parallel_size",
        _DIVISION
        + "the number of layers is not a multiple of the pipeline-parallel size; choose another number of"
        " stages, or set how many layers the first and the last stage have",
    ),
    (
        r"batch size \((?P<a>\d+)\) is not divisible by micro.batch.size \((?P<b>\d+)\) times data.parallel.size"
        r" \((?P<c>\d+)\)",
        _DIVISION + "a global batch of {a} is not a multiple of micro-batch {b} times data-parallel size {c}",
    ),
    (
        r"Number of microbatches \((?P<a>\d+)\) must be greater than\s+or equal to the number of stages \((?P<b>\d+)\)",
        _DIVISION + "{a} micro-batches cannot fill a pipeline of {b} stages: use at least {b}",
    ),
    (
        r"[Pp]ipeline group size (?P<a>\d+) cannot be larger than number of stages (?P<b>\d+)",
        _STRATEGY + "{a} ranks share {b} pipeline stages, but each rank needs its own stage",
    ),
    (
        r"No backend type associated with device type (?P<a>\w+)",
        "a collective was given a tensor on {a}, which this process group's backend cannot reach: move the tensor to"
        " the accelerator, or use a backend such as cpu:gloo,cuda:nccl",
    ),
    (
        r"[Rr]ank (?P<a>\d+) is out of range.*?world_size=(?P<b>\d+)",
        _STRATEGY + "a group contains rank {a}, but there are only {b} ranks",
    ),
    (
        r"environment variable (?P<a>RANK|WORLD_SIZE) expected, but not set by mpirun or srun",
        "mpirun and srun do not set {a}: set it in the script from OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, or from"
        " SLURM_PROCID and SLURM_NTASKS, before init_process_group",
    ),
    (
        r"environment variable (?P<a>RANK|WORLD_SIZE|MASTER_ADDR|LOCAL_RANK) expected, but not set",
        "the script expects a launcher such as torchrun, but {a} is not set: pass --world-size",
    ),
    (
        r"params\[(?P<n>\d+)\] in this process with (?P<w>sizes|strides) \[(?P<a>.*?)\] appears not to match \w+ of the same"
        r" param in process (?P<b>\d+)",
        "the model is not the same on every rank: parameter {n} is [{a}] here ({w}) and different on rank {b}; build it"
        " from the same configuration everywhere",
    ),
    # -- checkpoints
    (r"Missing key\(s\) in state_dict: (?P<a>\"[^\"]+\")", _STATE_DICT + "it lacks {a}"),
    (r"Unexpected key\(s\) in state_dict: (?P<a>\"[^\"]+\")", _STATE_DICT + "the model has no {a}"),
    (
        r"size mismatch for (?P<n>\S+): copying a param with shape (?:torch\.Size\()?\[(?P<a>.*?)\]\)? "
        r"from checkpoint.*?current model is (?:torch\.Size\()?\[(?P<b>.*?)\]",
        _STATE_DICT + "{n} is [{a}] in the file and [{b}] in the model",
    ),
    # -- autograd
    (
        r"backward through the graph a second time",
        "backward ran twice through the same graph: run forward again, or pass retain_graph=True",
    ),
    (
        r"does not require grad and does not have a grad_fn",
        "the loss does not depend on any trainable parameter: look for .detach(), no_grad or frozen weights",
    ),
    (
        r"grad can be implicitly created only for scalar outputs",
        "backward was called on a tensor with several elements: reduce it to one, for example with .mean()",
    ),
    # -- the dry run itself
    (
        r"(?i)name resolution|network is (?:unreachable|off)|offline ?mode|couldn't connect to 'http|"
        r"Max retries exceeded|HF_HUB_OFFLINE|no route to host",
        "the script needs the network, which is off in a dry run: add --network-access, or download what it loads "
        "beforehand",
    ),
    (
        r"Value too large for defined data type: '(?P<a>.*?)'",
        "{a} belongs to another user or group, and a dry run without root permissions cannot copy it: run windtunnel as "
        "its group, with `sg GROUP`, or on a copy of that folder",
    ),
    (
        r"No space left on device",
        "the disk is full: what a script writes in a dry run goes to TMPDIR or /var/tmp; set TMPDIR to a folder with space",
    ),
    (
        r"there is no shape rule for (?P<a>\S+)",
        "the operator {a} has no shape rule: register one with torch.library.register_fake('{a}')",
    ),
    (
        r"Could not run '(?P<a>[\w:.]+)' with arguments from the '(?:Autograd)?(?:PrivateUse1|simulated|npu)' backend",
        "the operator {a} has no simulated kernel: register its shapes with torch.library.register_fake('{a}')"
        + _ONLY_HERE,
    ),
    (
        r"EOF when reading a line",
        "the script waits for input, which a dry run does not have: pass it as an argument or in a file",
    ),
    (r"(?P<a>a library outside torch asked for the memory of a simulated tensor.*)", "{a}"),
    (
        r"libcuda(?:rt)?\.so|Found no NVIDIA driver|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|cudaErrorInsufficientDriver|"
        r"no CUDA-capable device|"
        r"CUDA driver version is insufficient|CUDA_ERROR_NOT_INITIALIZED",
        "the script, or a package it imports, calls the CUDA driver past torch (cuda-python, CuPy, Numba, …), and a dry run "
        "has none: guard it with `if not windtunnel.is_dry_run():`, or make it an operator with torch.library.custom_op and "
        "register_fake" + _ONLY_HERE,
    ),
    (
        r"CUDA_HOME environment variable is not set|Error building extension|No such file or directory: '\S*nvcc'",
        "the script compiles a CUDA extension, which needs CUDA's compiler; a dry run needs only its operators: register "
        "them with torch.library.custom_op and register_fake, or guard the call with `if not windtunnel.is_dry_run():`"
        + _ONLY_HERE,
    ),
    (
        r"No module named '(?P<a>apex|flash_attn_3|flash_attn_interface|xformers)\b",
        "the script needs {a}, which is not installed in this Python: WINDTUNNEL_WITH={a} simulates it for libraries too",
    ),
    (
        r"(?P<a>persist_layer_norm|[Ss]equence parallel) not supported by torch LayerNorm",
        "Megatron-core's local layers take Apex's layer norm for {a}, and Apex is not installed in this Python: "
        "WINDTUNNEL_WITH=apex simulates it",
    ),
    (
        r"the package for FlashAttention3 doesn't seem to be installed",
        "the script asks transformers for FlashAttention-3, which is not installed in this Python: "
        "WINDTUNNEL_WITH=flash_attn_interface simulates it",
    ),
    (
        r"No module named '(?P<a>mamba_ssm|causal_conv1d)\b",
        "the script needs {a}, whose Python must be installed; its kernels are simulated, so without them is enough: "
        "MAMBA_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE pip install --no-build-isolation mamba-ssm "
        "causal-conv1d",
    ),
    (
        r"No module named '(?P<a>.+?)'",
        "the script needs the package '{a}', which is not installed in this Python: pip install it, or, if "
        "it only exists for accelerators, guard its import",
    ),
)


_LONGEST = 300  # characters of a message that matches no rule

# How torch often reports a model that the parallel strategy does not divide evenly.
_ODD_SIZES = re.compile(r"is invalid for input of size|must match the size|shapes cannot be multiplied")


# What MindSpore's dataset pipeline makes of an exception in the user's code: the whole traceback, as text.
_DATASET = re.compile(
    r"user defined Python function in dataset.*?Traceback \(most recent call last\):\n"
    r"(?P<trace>.*?\n)(?P<cause>\S[^\n]*)\n+-{10}",
    re.DOTALL,
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def explain(error: BaseException, n_ranks: int = 1) -> str:
    """One sentence about a script's exception, in a job of this many ranks."""
    sentence = _explain(error)
    if n_ranks > 1 and _ODD_SIZES.search(str(error)):
        sentence += f"; with {n_ranks} ranks, check that the tensor-parallel size divides heads, hidden size and vocabulary"
    return sentence


def _explain(error: BaseException) -> str:
    text = str(error)
    if re.match(r"Caught \w+ in \w+ worker", text):
        text = text.strip().rpartition("\n")[2]  # a worker process sends a whole traceback
    if in_dataset := _DATASET.search(text):
        place = _FRAME.findall(in_dataset["trace"])
        where = f" in {place[-1][0].rpartition('/')[2]}:{place[-1][1]}" if place else ""
        return f"the dataset's own code raised {in_dataset['cause'].strip()}{where}"
    text = " ".join(text.split())
    for pattern, sentence in _RULES:
        match = re.search(pattern, text)
        if match:
            return sentence.format_map({k: v or "" for k, v in match.groupdict().items()}).rstrip(".")
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OSError) and cause.errno is not None:  # the library that caught it may not name it
        known = _explain(cause)
        if not known.startswith("the script raised"):
            return known
    kind = type(error).__name__
    if isinstance(error, KeyError) and text:
        return f"the script looked up the key {text}, which does not exist"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} … ({len(text) - _LONGEST:,} more characters in run.log)"
    return f"the script raised {kind}: {text}" if text else f"the script raised {kind}"
