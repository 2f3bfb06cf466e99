"""Models of other kinds, with random weights: what is looked at is where their KV goes, not what they say."""

import shutil
from pathlib import Path
from typing import Any

import torch


def hybrid(folder: Path, tokenizer: Path) -> Path:
    """Full attention beside a sliding window of 64 tokens: two KV-cache groups."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **_SMALL,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        head_dim=32,
        query_pre_attn_scalar=32,
    )
    return _saved(Gemma3ForCausalLM(config), folder, tokenizer)


def latent(folder: Path, tokenizer: Path) -> Path:
    """Multi-head latent attention."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        **_SMALL,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=4,
        n_routed_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
        n_shared_experts=1,
        topk_method="greedy",
    )
    return _saved(DeepseekV2ForCausalLM(config), folder, tokenizer)


def mamba(folder: Path, tokenizer: Path) -> Path:
    """No attention at all."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=_SMALL["vocab_size"], hidden_size=64, state_size=8, num_hidden_layers=2)
    return _saved(MambaForCausalLM(config), folder, tokenizer)


_SMALL: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}


def _saved(model: Any, folder: Path, tokenizer: Path) -> Path:
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder)
    for path in tokenizer.glob("token*"):
        shutil.copy(path, folder)
    return folder
