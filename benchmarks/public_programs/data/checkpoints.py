"""Weights that scripts load before they train, random, in the files of torchvision and Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.public_programs.data.text import WORDS

__all__ = ["DATA"]

_TORCHVISION = {
    "vgg16": "vgg16-397923af.pth",
    "vgg19": "vgg19-dcbb9e9d.pth",
    "resnet18": "resnet18-f37072fd.pth",
    "resnet50": "resnet50-11ad3fa6.pth",
    "resnet152": "resnet152-f82ba261.pth",
}


def _torch_home(folder: Path) -> None:
    """What TORCH_HOME has after torchvision has downloaded."""
    import torch
    from torchvision import models

    place = folder / "hub" / "checkpoints"
    place.mkdir(parents=True, exist_ok=True)
    for name, file in _TORCHVISION.items():
        torch.save(getattr(models, name)().state_dict(), place / file)


def _words(folder: Path, special: dict[str, str], size: int) -> None:
    """A tokenizer of whole words; its vocabulary is filled up to the model's size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = list(dict.fromkeys((*special.values(), *WORDS, ".", ",", "!")))
    vocabulary = {word: i for i, word in enumerate([*names, *(f"w{i}" for i in range(size - len(names)))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if "cls_token" in special:
        first, last = special["cls_token"], special["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
        )  # fmt: skip
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special).save_pretrained(
        folder
    )


def _save_model(folder: Path, kind: str, config: dict) -> None:
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    getattr(transformers, kind)._from_config(made).save_pretrained(folder)


_BERT = {
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_GPT = {
    "unk_token": "<unk>",
    "eos_token": "<|endoftext|>",
    "bos_token": "<|endoftext|>",
    "pad_token": "<pad>",
}
_T5 = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
_SMALL = 4096  # words of every vocabulary


def _gpt2(folder: Path) -> None:
    _words(folder, _GPT, _SMALL)
    _save_model(
        folder,
        "GPT2LMHeadModel",
        {"model_type": "gpt2", "vocab_size": _SMALL, "n_layer": 4, "bos_token_id": 1, "eos_token_id": 1},
    )


def _bert(folder: Path) -> None:
    _words(folder, _BERT, _SMALL)
    _save_model(
        folder, "BertForPreTraining", {"model_type": "bert", "vocab_size": _SMALL, "num_hidden_layers": 4}
    )


def _t5(folder: Path) -> None:
    _words(folder, _T5, _SMALL)
    _save_model(
        folder, "T5ForConditionalGeneration",
        {"model_type": "t5", "vocab_size": _SMALL, "num_layers": 2, "decoder_start_token_id": 0, "eos_token_id": 1},
    )  # fmt: skip


def _llama(folder: Path) -> None:
    _words(folder, _GPT, _SMALL)
    _save_model(
        folder, "LlamaForCausalLM",
        {"model_type": "llama", "vocab_size": _SMALL, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 4},
    )  # fmt: skip


def _vit(folder: Path) -> None:
    _save_model(
        folder, "ViTForImageClassification",
        {"model_type": "vit", "num_hidden_layers": 4, "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    )  # fmt: skip
    processor = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
        "size": {"height": 224, "width": 224}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
        "rescale_factor": 1 / 255,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def _autoencoder(folder: Path) -> None:
    """stabilityai/sd-vae-ft-ema, with Stable Diffusion's own sizes."""
    from diffusers.models import AutoencoderKL

    channels = (128, 256, 512, 512)
    AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=channels, layers_per_block=2, latent_channels=4, sample_size=256,
    ).save_pretrained(folder)  # fmt: skip


def _torchtune(folder: Path) -> None:
    """A two-layer Llama 2 under torchtune's names."""
    import torch

    width, hidden, words = 512, 1536, 32_000
    shapes = {
        "tok_embeddings.weight": (words, width),
        "norm.scale": (width,),
        "output.weight": (words, width),
    }
    for i in range(2):
        layer = f"layers.{i}"
        shapes |= {
            f"{layer}.attn.{name}.weight": (width, width)
            for name in ("q_proj", "k_proj", "v_proj", "output_proj")
        }
        shapes |= {f"{layer}.{name}.scale": (width,) for name in ("sa_norm", "mlp_norm")}
        shapes |= {f"{layer}.mlp.w1.weight": (hidden, width), f"{layer}.mlp.w3.weight": (hidden, width)}
        shapes |= {f"{layer}.mlp.w2.weight": (width, hidden)}
    torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.pt")


DATA: dict[str, Callable[[Path], None]] = {
    "torch-home": _torch_home,
    "hf-gpt2": _gpt2,
    "hf-bert": _bert,
    "hf-t5": _t5,
    "hf-llama": _llama,
    "hf-vit": _vit,
    "sd-vae": _autoencoder,
    "torchtune": _torchtune,
}
