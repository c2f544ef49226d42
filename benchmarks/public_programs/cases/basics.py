"""pytorch/examples, tutorials, GANs and small networks: one device, and the CPU itself."""

from __future__ import annotations

from benchmarks.public_programs.case import Case, Group

__all__ = ["CASES"]

_STEPS = "--steps 4"
_CPU = "--device cpu --steps 4"


def _examples() -> tuple[Case, ...]:
    def at(folder: str, **more: object) -> Group:
        return Group("examples", start_in=folder, **more)

    mnist = {"../data": "mnist"}
    words = at("word_language_model", data={"data/wikitext-2": "lines"})
    net = at("imagenet", data={"images": "imagenet"})
    siamese = at("siamese_network", data=mnist)
    return (
        at("mnist", data=mnist)("single", "main.py --epochs 1"),
        at("mnist", data=mnist)("CPU", "main.py --epochs 1 --no-accel --dry-run", "--device cpu"),
        at("mnist_rnn", data=mnist)("single", "main.py --epochs 1 --accel"),
        at("mnist_forward_forward", data={"data": "mnist"})("single", "main.py --epochs 2"),
        at("mnist_hogwild", data=mnist)("two processes", "main.py --epochs 1 --cuda --dry-run"),
        siamese("single", "main.py --epochs 1 --dry-run"),
        at("vae", data=mnist)("single", "main.py --epochs 1"),
        at("vae", data=mnist)("CPU", "main.py --epochs 1 --no-accel", _CPU),
        at("dcgan")("fake data", "main.py --dataset fake --accel --dry-run"),
        at("dcgan", data={"images": "one-class/train"})(
            "folder", "main.py --dataset folder --dataroot images --accel --niter 1"
        ),
        net("fake data", "main.py --dummy -a resnet50 -b 32 -j 2 --epochs 1", _STEPS),
        net("folder", "main.py images -a resnet18 -b 16 -j 2 --epochs 1 --gpu 0"),
        net(
            "DDP 2, torchrun",
            "torchrun --nproc-per-node 2 main.py images -a resnet18 -b 8 -j 1 --epochs 1 --dist-url env:// --dist-backend nccl",
        ),
        net(
            "DDP 2, mp.spawn",
            "main.py images -a resnet18 -b 16 -j 2 --epochs 1 --dist-url tcp://127.0.0.1:23456 --dist-backend nccl "
            "--multiprocessing-distributed --world-size 1 --rank 0",
            "--world-size 2",
        ),
        words("LSTM", "main.py --epochs 1 --accel --dry-run"),
        words("Transformer", "main.py --model Transformer --epochs 1 --accel --dry-run --use-optimizer"),
        words("GRU, tied", "main.py --model GRU --tied --epochs 1 --accel --dry-run"),
        words("RNN_TANH, CPU", "main.py --model RNN_TANH --epochs 1 --dry-run", "--device cpu"),
        at("super_resolution", data={"dataset": "bsds"})(
            "single", "main.py --upscale_factor 3 --batchSize 4 --testBatchSize 4 --nEpochs 1 --threads 0 --accel"
        ),
        at("reinforcement_learning")("CPU tensors", "reinforce.py", "--steps 20"),
        at("reinforcement_learning")("CPU tensors", "actor_critic.py", "--steps 20"),
        at("regression")("CPU tensors", "main.py"),
        at("regression")("CPU", "main.py", "--device cpu --steps 20"),
        at("time_sequence_prediction")("CPU tensors, L-BFGS", "bash -c 'python generate_sine_wave.py && python train.py --steps 1'"),
        at("fast_neural_style", data={"pictures": "one-class"}, variables={"TORCH_HOME": "{data}/torch-home"})(
            "single", "neural_style/neural_style.py train --epochs 1 --dataset pictures/train --save-model-dir models --accel"
        ),
        at("gat", data={"cora": "cora"})("single", "main.py --epochs 2"),
        at("gat", data={"cora": "cora"})("CPU", "main.py --epochs 2 --no-accel", "--device cpu", fails="windtunnel: sparse tensors"),
        at("gcn", data={"cora": "cora"})("single", "main.py --epochs 2", fails="network"),
    )  # fmt: skip


def _tutorials() -> tuple[Case, ...]:
    def at(folder: str, data: str = "mnist", **more: object) -> Group:
        return Group("pytorch-tutorial", start_in=f"tutorials/{folder}", data={"../../data": data}, **more)

    unchecked = {"packages": ("unchecked-cifar",)}
    return (
        at("01-basics/feedforward_neural_network")("single", "main.py"),
        at("02-intermediate/convolutional_neural_network")("single", "main.py"),
        at("02-intermediate/recurrent_neural_network")("single", "main.py"),
        at("02-intermediate/deep_residual_network", "cifar10", **unchecked)("single", "main.py", "--steps 20"),
        Group("pytorch-tutorial", start_in="tutorials/02-intermediate/language_model", data={"data": "lines"})(
            "single", "main.py", "--steps 40"
        ),
        Group(
            "pytorch-tutorial", start_in="tutorials/03-advanced/neural_style_transfer",
            variables={"TORCH_HOME": "{data}/torch-home"}, data={"png": "style-images"},
        )("single", "main.py --content png/0.jpg --style png/1.jpg --total_step 20 --sample_step 10", fails="Pillow"),
    )  # fmt: skip


def _gans() -> tuple[Case, ...]:
    def at(name: str, data: dict[str, str] | None = None, **more: object) -> Group:
        return Group(
            "PyTorch-GAN",
            start_in=f"implementations/{name}",
            data=data or {"../../data/mnist": "mnist"},
            **more,
        )

    once = "--n_epochs 1 --n_cpu 0"
    return (
        *(at(name)("single", f"{name}.py {once}", "--steps 8") for name in (
            "gan", "dcgan", "wgan_gp", "infogan",
        )),
        at("cyclegan", {"../../data/monet2photo": "pairs"})("single", f"cyclegan.py {once} --decay_epoch 0", "--steps 6"),
        at("pix2pix", {"../../data/facades": "side-by-side"})("single", f"pix2pix.py {once}", "--steps 6"),
        at("srgan", {"../../data/img_align_celeba": "faces"}, variables={"TORCH_HOME": "{data}/torch-home"})(
            "single", f"srgan.py {once}", "--steps 6"
        ),
    )  # fmt: skip


def _sequences() -> tuple[Case, ...]:
    def tcn(folder: str, script: str, mode: str, words: str, options: str = "", **more: object) -> Case:
        return Group("TCN", start_in=f"TCN/{folder}", **more)(mode, f"{script} {words}", options)

    return (
        tcn("adding_problem", "add_test.py", "single", "--epochs 1", "--steps 20"),
        tcn(
            "word_cnn", "word_cnn_test.py", "single", "--epochs 1", "--steps 20", data={"data/penn": "lines"}
        ),
    )


def _reinforcement() -> tuple[Case, ...]:
    clean = Group("cleanrl", paths=(".",))
    return (
        clean("single", "cleanrl/ppo.py --total-timesteps 1024"),
        clean("single", "cleanrl/dqn.py --total-timesteps 300 --learning-starts 100", "--steps 10"),
    )


CASES = (*_examples(), *_tutorials(), *_gans(), *_sequences(), *_reinforcement())
