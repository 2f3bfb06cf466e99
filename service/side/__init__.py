"""The side socket: hands memory regions to workers as file descriptors, and proves when a worker is gone."""
