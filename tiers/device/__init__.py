"""The device seam: memory of a GPU (or of the host, standing in for one), and ordered copies to and from it.

`base` states the contract. `host` keeps a pool in shared memory and copies on worker threads; `cuda` keeps it in device
memory and copies on CUDA streams. `cuda_torch` is the only file that calls CUDA. Nothing here knows blocks, keys or
the directory: a caller gives byte offsets.
"""
