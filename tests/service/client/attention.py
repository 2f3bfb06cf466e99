"""Attention two ways: over contiguous K and V, and page by page through a block table, as kernels do it (online softmax)."""

import torch


def contiguous(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query [heads, dim] over keys and values [tokens, heads, dim]: [heads, dim]."""
    scores = torch.einsum("hd,thd->ht", query, keys) / query.shape[-1] ** 0.5
    return torch.einsum("ht,thd->hd", torch.softmax(scores, dim=-1), values)


def paged(query: torch.Tensor, layer: torch.Tensor, blocks: torch.Tensor, tokens: int) -> torch.Tensor:
    """The same through `blocks` (int32 [n]) over a layer's view of the pool [slots, 2, block_tokens, heads, dim].

    One block at a time, with the running maximum and sum of Milakov and Gimelshein (2018), "Online normalizer calculation
    for softmax"; nothing is gathered.
    """
    heads, dim = query.shape
    best = torch.full((heads,), float("-inf"), device=query.device)
    total = torch.zeros(heads, device=query.device)
    mixed = torch.zeros(heads, dim, device=query.device)
    block_tokens = layer.shape[2]
    for number, slot in enumerate(blocks.tolist()):
        count = min(block_tokens, tokens - number * block_tokens)
        if count <= 0:
            break
        keys, values = layer[slot, 0, :count], layer[slot, 1, :count]
        scores = torch.einsum("hd,thd->ht", query, keys) / dim**0.5
        higher = torch.maximum(best, scores.max(dim=-1).values)
        scale, weights = torch.exp(best - higher), torch.exp(scores - higher[:, None])
        total = total * scale + weights.sum(dim=-1)
        mixed = mixed * scale[:, None] + torch.einsum("ht,thd->hd", weights, values)
        best = higher
    return mixed / total[:, None]


def gathered(layer: torch.Tensor, blocks: torch.Tensor, tokens: int) -> torch.Tensor:
    """K and V of a sequence out of the pool, contiguous: [2, tokens, heads, dim]."""
    found = layer[blocks.long()]
    return found.transpose(0, 1).flatten(1, 2)[:, :tokens].contiguous()
