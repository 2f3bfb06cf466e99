"""Tiny models with random weights, made from their configs: nothing is downloaded."""

from typing import Any

import torch
import transformers

VOCABULARY = 128


def llama(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Four layers, four heads over two KV heads of 32, full attention."""
    given = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": 0,
    }
    return made(transformers.LlamaForCausalLM, transformers.LlamaConfig(**(given | changes)), seed, dtype)


def made(kind: Any, config: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model of this kind; the same seed gives the same weights."""
    torch.manual_seed(seed)
    return kind(config).to(dtype).eval()


def prompt(tokens: int, seed: int = 0) -> torch.Tensor:
    """Token ids, (1, tokens)."""
    return torch.randint(1, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(seed))
