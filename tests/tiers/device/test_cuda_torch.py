"""The real runtime's own logic, with the CUDA library's functions replaced: no GPU is needed to translate its answers."""

from collections.abc import Callable
from typing import Any

import pytest

from hybridkv.tiers.device.cuda_torch import TorchCudaRuntime
from hybridkv.tiers.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError


class Library:
    """Functions that record their calls and answer with a code."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getitem__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return b"what CUDA says" if name == "cudaGetErrorString" else self.codes.get(name, 0)

        return call


def runtime(**codes: int) -> tuple[TorchCudaRuntime, Library]:
    made, library = object.__new__(TorchCudaRuntime), Library(**codes)
    made._functions = library  # type: ignore[assignment]
    return made, library


def test_every_call_makes_its_device_current_first() -> None:
    cuda, library = runtime()
    cuda.copy_async(3, 10, 20, 30, 40)
    assert library.calls == [("cudaSetDevice", (3,)), ("cudaMemcpyAsync", (10, 20, 30, 4, 40))]


def test_out_of_memory_is_exhaustion() -> None:
    cuda, library = runtime(cudaMalloc=2)
    with pytest.raises(ResourceExhaustedError, match="GPU memory: cudaMalloc: what CUDA says"):
        cuda.malloc(0, 4096)
    assert "cudaGetLastError" in [name for name, _ in library.calls]  # else torch would report it as its own


@pytest.mark.parametrize("function", ["cudaSetDevice", "cudaMemcpyAsync"])
def test_other_failures_are_unavailability_and_name_the_call(function: str) -> None:
    cuda, _ = runtime(**{function: 719})
    with pytest.raises(UnavailableError, match=rf"{function}: what CUDA says \(719\), device 1"):
        cuda.copy_async(1, 10, 20, 30, 40)


def test_not_ready_is_an_answer() -> None:
    assert not runtime(cudaEventQuery=600)[0].event_done(0, 5)
    assert runtime()[0].event_done(0, 5)
    with pytest.raises(UnavailableError):
        runtime(cudaEventQuery=400)[0].event_done(0, 5)


def test_read_only_memory_is_registered_as_such() -> None:
    cuda, library = runtime()
    cuda.register_host(0, 4096, 8192, True)
    cuda.register_host(0, 4096, 8192, False)
    assert [arguments[2] for name, arguments in library.calls if name == "cudaHostRegister"] == [9, 1]


def test_a_handle_of_another_length_is_refused() -> None:
    for opens in (runtime()[0].open_memory, runtime()[0].open_event):
        with pytest.raises(InvalidArgumentError, match="64"):
            opens(0, b"short")


def test_kernels_reach_host_memory_only_where_cuda_says_so() -> None:
    cuda, library = runtime()  # the attribute stays 0
    assert not cuda.kernels_reach_host(0)
    assert "cudaHostAlloc" not in [name for name, _ in library.calls]
