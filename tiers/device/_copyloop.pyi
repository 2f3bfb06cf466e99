from typing import Any

from numpy.typing import NDArray

from hybridkv.tiers.device.base import Bytes

Column = NDArray[Any]

def copy_runs(destination: Bytes, source: Bytes, destinations: Column, sources: Column, lengths: Column, /) -> None: ...
