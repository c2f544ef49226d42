"""Networks for images: torchvision's references, timm, and what came with papers."""

from __future__ import annotations

from benchmarks.public_programs.case import Case, Group

__all__ = ["CASES"]

_STEPS = "--steps 3"
_IMAGES = {"images": "imagenet"}
_UNCHECKED = ("unchecked-cifar",)


def _torchvision() -> tuple[Case, ...]:
    classify = Group("vision", start_in="references/classification", data=_IMAGES)
    detect = Group("vision", start_in="references/detection", data={"coco": "coco"})
    segment = Group("vision", start_in="references/segmentation", data={"voc": "voc"})
    train = "train.py --data-path images -b 8 -j 1 --epochs 1"
    boxes = "train.py --data-path coco -b 2 -j 1 --epochs 1"
    masks = "train.py --data-path voc --dataset voc -b 4 -j 1 --epochs 1"
    return (
        classify("single", train),
        classify("GradScaler, EMA, mixup", f"{train} --amp --model-ema --mixup-alpha 0.2 --clip-grad-norm 1 --model resnet50"),
        classify("DDP 2, sync BN", f"torchrun --nproc-per-node 2 {train} --sync-bn"),
        classify("DDP 8, GradScaler", f"torchrun --nproc-per-node 8 {train} --amp -b 2"),
        classify("CPU", f"{train} --device cpu", "--device cpu --steps 2"),
        detect("Mask R-CNN", f"{boxes}", _STEPS),
        detect("RetinaNet, GradScaler", f"{boxes} --model retinanet_resnet50_fpn --amp --lr 0.001", _STEPS),
        segment("FCN", f"{masks} --model fcn_resnet50 --aux-loss"),
        segment("DeepLab, GradScaler", f"{masks} --model deeplabv3_resnet50 --amp"),
    )  # fmt: skip


def _timm() -> tuple[Case, ...]:
    timm = Group("pytorch-image-models", data=_IMAGES, paths=(".",))
    train = "train.py --data-dir images -b 8 -j 1 --epochs 1 --cooldown-epochs 0 --num-classes 8 --model"
    return (
        timm("single", f"{train} resnet18"),
        timm("AMP fp16", f"{train} resnet50 --amp --model-ema"),
        timm("AMP bf16", f"{train} convnext_tiny --amp --amp-dtype bfloat16 --opt adamw --mixup 0.8 --cutmix 1"),
        timm("compile", f"{train} resnet18 --torchcompile", "--steps 2"),
        timm("checkpointing, accumulation", f"{train} vit_tiny_patch16_224 --grad-checkpointing --grad-accum-steps 2 --opt lamb"),
        timm("DDP 2", f"torchrun --nproc-per-node 2 {train} efficientnet_b0 --dist-bn reduce"),
        timm("DDP 8, channels last", f"torchrun --nproc-per-node 8 {train} resnet18 --channels-last --amp -b 2"),
    )  # fmt: skip


def _cifar() -> tuple[Case, ...]:
    small = Group("pytorch-cifar100", data={"data": "cifar100"}, packages=_UNCHECKED)
    return (
        Group("pytorch-cifar", data={"data": "cifar10"}, packages=_UNCHECKED)("DataParallel", "main.py", "--steps 10", fails="terminal"),
        small("single", "train.py -net resnet18 -gpu -b 64", "--steps 6", fails="windtunnel: torch.jit.trace"),
        Group("vit-pytorch", data={"data": "cifar100"}, packages=_UNCHECKED, paths=(".",))(
            "accelerate", "train_vit_decorr.py", "--steps 4"
        ),
        Group("DeepSpeedExamples", start_in="training/cifar", data={"data": "cifar10"}, packages=_UNCHECKED)(
            "DeepSpeed 2, ZeRO 2", "deepspeed --num_gpus 2 cifar10_deepspeed.py --deepspeed --stage 2 --epochs 1", "--steps 4"
        ),
        Group("DeepSpeedExamples", start_in="training/cifar", data={"data": "cifar10"}, packages=_UNCHECKED)(
            "DeepSpeed 2, bf16", "deepspeed --num_gpus 2 cifar10_deepspeed.py --deepspeed --dtype bf16 --epochs 1", "--steps 4"
        ),
    )  # fmt: skip


def _papers() -> tuple[Case, ...]:
    dino = Group("dino", data=_IMAGES, fails="network")
    dino_train = "main_dino.py --arch vit_tiny --data_path images/train --batch_size_per_gpu 4 --num_workers 1 --epochs 1"
    deit = Group("deit", data=_IMAGES, fails="package")
    swin = Group("Swin-Transformer", data=_IMAGES)
    contrast = "--epochs 1 -j 1 --dist-url tcp://127.0.0.1:10001 --multiprocessing-distributed --world-size 1 --rank 0"
    return (
        dino("GradScaler", dino_train + " --warmup_epochs 0 --warmup_teacher_temp_epochs 0", "--steps 4"),
        dino("DDP 2, fp32", f"torchrun --nproc_per_node=2 {dino_train} --warmup_epochs 0 --warmup_teacher_temp_epochs 0 --use_fp16 false", "--steps 4"),
        deit("single", "main.py --model deit_tiny_patch16_224 --data-path images --batch-size 8 --num_workers 1 --epochs 1", "--steps 4"),
        swin(
            "DDP 2", "torchrun --nproc_per_node=2 main.py --cfg configs/swin/swin_tiny_patch4_window7_224.yaml --data-path images --batch-size 8",
            "--steps 3",
        ),
        Group("simsiam", data=_IMAGES)("DDP 2, mp.spawn", f"main_simsiam.py images -a resnet18 -b 8 --fix-pred-lr {contrast}", "--world-size 2 --steps 4"),
        Group("barlowtwins", data=_IMAGES)("DDP 2, GradScaler", "main.py images --batch-size 16 --workers 2 --epochs 1", "--world-size 2 --steps 2"),
        Group("vicreg", data=_IMAGES)(
            "DDP 2, GradScaler", "torchrun --nproc_per_node=2 main_vicreg.py --data-dir images --batch-size 16 --num-workers 1 --epochs 1 --mlp 512-512-512",
            "--steps 2",
        ),
        Group("DiT", data={"images": "imagenet", "stabilityai/sd-vae-ft-ema": "sd-vae"})(
            "DDP 2", "torchrun --nproc_per_node=2 train.py --model DiT-S/8 --data-path images/train --global-batch-size 8 --num-workers 1 --epochs 1",
            "--steps 3",
        ),
        Group("Pytorch-UNet", data={"data": "carvana"})("GradScaler", "train.py --amp --epochs 1 -b 2"),
        Group("mae", data=_IMAGES)("single", "main_pretrain.py --data_path images --batch_size 8 --epochs 1", fails="package"),
        Group("ConvNeXt", data=_IMAGES)("single", "main.py --data_path images --batch_size 8 --epochs 1", fails="script"),
        Group("yolov5", data={"things": "yolo"})(
            "AMP", "train.py --img 64 --batch 4 --epochs 1 --data things/data.yaml --weights '' --cfg yolov5n.yaml --workers 0 --noplots"
        ),
        Group("open_clip", paths=("src",))(
            "AMP bf16", "-m open_clip_train.main --dataset-type synthetic --train-num-samples 32 --batch-size 8 --epochs 1 --model RN50 --workers 0 --precision amp_bf16",
            "--steps 3",
        ),
        Group("open_clip", paths=("src",))(
            "DDP 2, checkpointing", "torchrun --nproc-per-node 2 -m open_clip_train.main --dataset-type synthetic --train-num-samples 32 --batch-size 4 "
            "--epochs 1 --model ViT-B-32 --workers 0 --grad-checkpointing --local-loss --gather-with-grad", "--steps 3",
        ),
    )  # fmt: skip


CASES = (*_torchvision(), *_timm(), *_cifar(), *_papers())
