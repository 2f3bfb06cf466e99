"""Stores four blocks and reads them back. Run it beside `hybridkv serve`; run it again and they are found.

python examples/first_steps.py [unix:///path/of/the.sock]
"""

import sys

import numpy as np

import hybridkv

address = sys.argv[1] if len(sys.argv) > 1 else hybridkv.load_config().daemon.socket
layout = hybridkv.BlockLayout(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", block_tokens=32)
space = hybridkv.Namespace(model="SmolLM2-135M", layout=layout)

with hybridkv.connect(address, space) as kv:
    keys = kv.keys(list(range(128)))  # 128 tokens are four blocks of 32
    print(f"found before: {kv.lookup(keys).prefix} of {len(keys)} blocks")
    with kv.reserve(keys) as slots:
        for i in slots.new:  # what nobody has yet is ours to write
            slots.array(i)[:] = i + 1
        slots.seal()
    with kv.acquire(keys, timeout_s=5) as lease:  # what lies on disk is brought up; blocks stay while we look at them
        assert lease.prefix == len(keys), f"only {lease.prefix} of {len(keys)} blocks came up in time"
        assert all(np.all(lease.array(i) == i + 1) for i in range(lease.prefix))
        print(f"read in place: {lease.prefix} blocks of {layout.block_bytes} bytes")
