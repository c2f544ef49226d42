"""The public MindSpore programs that are compared: as their readme or run script starts them, on little data."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True)
class Program:
    """A program, how a user starts it, and the data it expects."""

    name: str
    folder: str  # in the fetched sources; a copy of it runs
    words: tuple[str, ...]  # for Python: what one worker runs
    typed: tuple[
        str, ...
    ] = ()  # after `windtunnel run`, if it is not that: a launcher or the program's own run script
    n_devices: int = 1
    ranks: tuple[int, ...] = (0,)
    data: dict[str, str] = field(default_factory=dict)  # place in the folder: what of our data
    variables: dict[str, str] = field(default_factory=dict)
    start_in: str = "."


_MNIST = {"MNIST_Data": "MNIST_Data"}
_TRAIN = {"DATA_PATH": "{folder}/MNIST_Data/train/"}


def _sample(
    folder: str, *words: str, n_devices: int = 8, ranks: tuple[int, ...] = (0,), name: str = "", **more
) -> Program:
    """A program of the MindSpore documentation."""
    known: dict = {"data": _MNIST, "variables": _TRAIN} | more
    return Program(
        f"docs {name or folder}", f"docs/docs/sample_code/{folder}", words, n_devices=n_devices,
        ranks=ranks if n_devices > 1 else (0,), **known,
    )  # fmt: skip


def _alone(folder: str, *words: str, name: str = "", **more) -> Program:
    return _sample(folder, *words, n_devices=1, name=name, **more)


_RUN = ("bash", "run.sh")
_OPERATORS = "distributed_operator_parallel"
_CIFAR = {"datasets/cifar-10-binary/cifar-10-batches-bin": "cifar-10-batches-bin"}


def _operators(which: str, script: str) -> Program:
    test = f"{script}.py::test_{script}"
    return _sample(
        _OPERATORS, "-m", "pytest", "-s", "-v", test, name=f"{_OPERATORS} {which}".strip(),
        typed=("bash", f"run_{which}.sh" if which else "run.sh"),
    )  # fmt: skip


_DOCS = (
    _sample("comm_subgraph", "train.py", typed=_RUN),
    _sample("dataset_slice", "-m", "pytest", "-s", "train.py", typed=_RUN),
    _sample("disaster_recover", "train.py", typed=_RUN),
    _sample("distributed_comm_fusion", "-m", "pytest", "-s", "fusion_example_cell.py", typed=_RUN),
    _sample("distributed_data_parallel", "distributed_data_parallel.py", typed=_RUN),
    _sample("distributed_gradient_accumulation", "-m", "pytest", "-s", "train.py", typed=_RUN),
    _sample("distributed_graph_partition", "train.py", variables={"DATA_PATH": "{folder}/MNIST_Data/"}),
    _operators("", "distributed_operator_parallel"),
    _operators("mint", "distributed_mint_operator_parallel"),
    _operators("advanced", "advanced_distributed_operator_parallel"),
    _operators("advanced_mint", "advanced_distributed_mint_operator_parallel"),
    _sample("distributed_optimizer_parallel", "distributed_optimizer_parallel.py", typed=_RUN),
    _sample("distributed_pipeline_parallel", "distributed_pipeline_parallel.py", ranks=(0, 7), typed=_RUN),
    _sample(
        "distributed_pipeline_parallel", "distributed_pipeline_parallel_inference.py", name="pipeline inference", ranks=(0, 7),
        typed=("bash", "run_inference.sh"),
    ),
    _sample("fault_recover", "train.py", typed=_RUN),
    _sample("graceful_exit", "graceful_exit.py", typed=("bash", "train.sh"), variables={"MS_ENABLE_GRACEFUL_EXIT": "1"}),
    _sample("high_dimension_tensor_parallel", "high_dimension_tensor_parallel.py", typed=_RUN),
    _sample("host_device", "-m", "pytest", "-s", "train.py", typed=_RUN),
    _sample("manual_parallel", "train.py", typed=_RUN),
    _sample(
        "memory_offload", "train.py", "--batch_size=32", "--memory_offload=ON", "--offload_param=cpu", "--auto_offload=true",
        "--offload_cpu_size=512GB", "--offload_disk_size=1024GB", "--host_mem_block_size=1GB",
        "--enable_pinned_mem=true", "--enable_aio=true", name="memory_offload ON", typed=("bash", "run.sh", "32", "ON"),
        data={"cifar-10-batches-bin": "cifar-10-batches-bin", "cifar-10-binary": "cifar-10-batches-bin"},
        variables={"DATA_PATH": "{folder}/cifar-10-batches-bin"},
    ),
    _sample(
        "memory_offload", "train.py", name="memory_offload OFF", data={"cifar-10-batches-bin": "cifar-10-batches-bin"},
        variables={"DATA_PATH": "{folder}/cifar-10-batches-bin"},
    ),
    _sample("multiple_copy", "-m", "pytest", "-s", "train.py", typed=_RUN),
    _sample("multiple_mix", "-m", "pytest", "-s", "sapp_mix_train.py", typed=("bash", "run_sapp_mix_train.sh")),
    _sample("parallel_support_dynamic_shape", "main.py", typed=_RUN),
    _sample("parameter_server", "train.py"),
    _sample("sapp", "train.py", typed=_RUN),
    _sample("shard_function_parallel", "shard_function_example.py", typed=("bash", "run_mpirun_shard_function_example.sh")),
    _sample("sharding_propagation", "train.py", typed=_RUN),
    _sample("startup_method", "net.py", name="startup_method msrun", typed=("bash", "msrun_single.sh")),
    _sample("startup_method", "net.py", name="startup_method dynamic cluster", typed=("bash", "run_dynamic_cluster.sh")),
    _sample("startup_method", "net.py", name="startup_method rank table", typed=("bash", "run_rank_table.sh")),
    _sample("infer_code", "model_dev.py", n_devices=2, ranks=(0, 1), name="infer_code model_dev"),
    _sample("infer_code", "param_split.py", n_devices=2, ranks=(0, 1), name="infer_code param_split"),
    _alone("recompute", "example.py"),
    _alone("profiler", "call_back_profiler.py", name="profiler call_back"),
    _alone("profiler", "dynamic_profiler.py", name="profiler dynamic"),
    _alone("profiler", "env_profiler.py", name="profiler env"),
    _alone("profiler", "for_loop_profiler.py", name="profiler for_loop"),
    _alone("profiler", "mstx_profiler.py", name="profiler mstx"),
    _alone("mindinsight/profiler", "profiling_feed_step.py", name="mindinsight profiling_feed_step"),
    _alone(
        "mindinsight/profiler", "profiling_sample.py", name="mindinsight profiling_sample",
        data={"datasets/MNIST_Data": "MNIST_Data"},
    ),
    _alone("mindinsight/profiler", "profiling_step.py", name="mindinsight profiling_step"),
    _alone("mindinsight/fix_randomness", "fix_randomness.py", name="mindinsight fix_randomness", data=_CIFAR),
    *(
        _alone("mindinsight/summary_record", f"summary_{which}.py", name=f"mindinsight summary_{which}", data=_CIFAR)
        for which in ("1", "2", "3", "4", "gradients")
    ),
    _alone("dump", "train_alexnet.py", "--device_target=Ascend", "--device_id=0", name="dump train_alexnet", data=_CIFAR),
    _alone(
        "model_encrypt_protection", "encrypt_checkpoint.py", data={"datasets/MNIST_Data": "MNIST_Data"},
    ),
    _alone("cache", "my_training_script.py", "--dataset_path", "cifar-10-batches-bin",
           data={"cifar-10-batches-bin": "cifar-10-batches-bin"}),
    _alone("convert_tf2ms_code", "convert_tf2ms.py"),
    _alone("golden", "mslite_gold.py"),
    _alone(".", "per_sample_gradient.py", name="per_sample_gradient"),
    _alone(".", "per_sample_gradient.py", "--vmap", name="per_sample_gradient vmap"),
)  # fmt: skip


def _mindcv(name: str, script: str, config: str, *words: str, **more) -> Program:
    given = (
        "--config", f"configs/{config}_ascend.yaml", "--data_dir", "images", "--batch_size", "8",
        "--num_parallel_workers", "1",
    )  # fmt: skip
    return Program(f"mindcv {name}", "mindcv", (script, *given, *words), data={"images": "images"}, **more)


_ONE_EPOCH = ("--epoch_size", "1", "--dataset_sink_mode", "False")
_ALONE = ("--distribute", "False")
_PYNATIVE = ("--mode", "1")
_MINDCV = (
    *(
        _mindcv(f"train {config.rpartition('/')[2]}", "train.py", config, *_PYNATIVE, *_ALONE, *_ONE_EPOCH)
        for config in (
            "resnet/resnet_18", "mobilenetv2/mobilenet_v2_1.0", "vit/vit_b32_224", "shufflenetv2/shufflenet_v2_1.0",
            "convnext/convnext_tiny", "vgg/vgg11", "squeezenet/squeezenet_1.0", "googlenet/googlenet",
        )
    ),
    _mindcv("train_with_func resnet_18", "train_with_func.py", "resnet/resnet_18", *_PYNATIVE, *_ALONE, *_ONE_EPOCH),
    _mindcv("train resnet_18, graph", "train.py", "resnet/resnet_18", *_ALONE, *_ONE_EPOCH),
    _mindcv("train resnet_18, 8 ranks", "train.py", "resnet/resnet_18", *_PYNATIVE, *_ONE_EPOCH, n_devices=8,
            typed=("msrun", "--worker_num", "8", "--local_worker_num", "8", "train.py", "--config",
                   "configs/resnet/resnet_18_ascend.yaml", "--data_dir", "images", "--batch_size", "8",
                   "--num_parallel_workers", "1", *_PYNATIVE, *_ONE_EPOCH)),
    _mindcv("validate resnet_18", "validate.py", "resnet/resnet_18", *_PYNATIVE, "--val_split", "val"),
)  # fmt: skip


def _mindformers(place: str, *words: str, n_devices: int = 1, ranks: tuple[int, ...] = (0,)) -> Program:
    """One of the programs that its tests start with msrun, or with python for one device."""
    path = f"tests/st/{place}"
    msrun = (
        "msrun",
        f"--worker_num={n_devices}",
        f"--local_worker_num={n_devices}",
        "--log_dir=log",
        "--join=True",
    )
    name = " ".join((place.rpartition("/")[2].removesuffix(".py"), *words))
    return Program(
        f"mindformers {name}" + (f", {n_devices} ranks" if n_devices > 1 else ""), "mindformers", (path, *words),
        typed=(*msrun, path, *words) if n_devices > 1 else (), n_devices=n_devices, ranks=ranks,
    )  # fmt: skip


_GPT = "test_multi_cards_cases/test_parallel_core/test_train_graph/test_base_models/test_gpt_model/run_gpt_model.py"
_UNITS = "test_ut/test_parallel_core/test_training_graph"
_MINDFORMERS = (
    _mindformers(_GPT, "--num_layers=2"),
    _mindformers(_GPT, "--num_layers=2", "--tensor_parallel=2", n_devices=4, ranks=(0, 3)),
    _mindformers(f"{_UNITS}/test_transformer/test_transformer_layer/run_transformer_layer.py"),
    _mindformers(f"{_UNITS}/test_transformer/test_transformer_layer/run_transformer_layer.py", "--tensor_parallel=2",
                 n_devices=2),
    _mindformers(f"{_UNITS}/test_transformer/test_transformer_block/run_transformer_block.py", "--num_layers=2"),
    _mindformers(f"{_UNITS}/test_transformer/test_attention/test_self_attention/run_self_attention.py"),
    _mindformers(f"{_UNITS}/test_tensor_parallel/test_column_parallel_linear/run_column_parallel_linear.py",
                 "--tensor_parallel=2", n_devices=2),
    _mindformers(f"{_UNITS}/test_vocab_parallel_crossentropy/run_vocab_parallel_cross_entropy.py",
                 "--tensor_parallel=2", n_devices=2),
)  # fmt: skip

PROGRAMS = (*_DOCS, *_MINDCV, *_MINDFORMERS)
