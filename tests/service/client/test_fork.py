"""A process that forks: the child attaches as itself, and what the parent holds is dead there and alive here."""

from pathlib import Path

import pytest

from tests.service.client.conftest import make_config
from tests.service.client.processes import daemon_process, run_script

_FORK = """
import os, sys, threading
import numpy as np
from hybridkv.service.client import connect
from hybridkv.tiers.errors import ExpiredError
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, make_space, store

kv = connect(sys.argv[1], make_space(), timeout_s=20.0)
keys = chain_of(kv, 3)
store(kv, keys)
lease = kv.acquire(keys)
slots = kv.reserve(chain_of(kv, 1, first_token=9000))
parents_session = kv.session

stop = threading.Event()
def use() -> None:
    while not stop.is_set():
        kv.lookup(keys)
threads = [threading.Thread(target=use) for _ in range(2)]
if sys.argv[2] == "busy":
    for thread in threads:
        thread.start()

def dead(call) -> bool:
    try:
        call()
    except ExpiredError:
        return True
    return False

def child() -> None:
    assert not lease.valid and not slots.valid
    assert dead(lambda: lease.array(0)) and dead(lambda: slots.array(0)) and dead(slots.seal)
    lease.release()
    slots.abort()
    assert kv.session != parents_session
    assert kv.epoch_changes == 0
    out = np.zeros((3, BLOCK_BYTES), np.uint8)
    assert (kv.read(keys, out) == 1).all()
    check_content(keys, out)
    with kv.acquire(keys) as own:
        check_content(keys, np.stack([own.array(i) for i in range(3)]))
    kv.close()

for _ in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"

stop.set()
for thread in threads:
    if thread.ident is not None:
        thread.join()
assert kv.session == parents_session
assert lease.valid and slots.valid
check_content(keys, np.stack([lease.array(i) for i in range(3)]))
slots.array(0)[:] = 5
assert slots.seal().tolist() == [1]
lease.release()
kv.close()
print("done")
"""


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_child_attaches_as_itself(tmp_path: Path, how: str) -> None:
    with daemon_process(tmp_path):
        ran = run_script(_FORK, make_config(tmp_path).daemon.socket, how)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


_EMBEDDED = """
import os, sys
from pathlib import Path
from hybridkv.service.client import open
from hybridkv.tiers.errors import FailedPreconditionError
from tests.service.client.conftest import chain_of, make_config, make_space, store

kv = open(make_config(Path(sys.argv[1])), make_space())
keys = chain_of(kv, 1)
store(kv, keys)
pid = os.fork()
if pid == 0:
    try:
        kv.lookup(keys)
    except FailedPreconditionError as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert kv.lookup(keys).prefix == 1
kv.close()
print("done")
"""


def test_host_in_the_process_does_not_outlive_a_fork(tmp_path: Path) -> None:
    ran = run_script(_EMBEDDED, str(tmp_path))
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


_LATE = """
import os, sys
os.environ.pop("GRPC_ENABLE_FORK_SUPPORT", None)
import grpc
from hybridkv.service.client import connect
from hybridkv.tiers.errors import FailedPreconditionError
from tests.service.client.conftest import make_space

kv = connect(sys.argv[1], make_space())
pid = os.fork()
if pid == 0:
    try:
        kv.session
    except FailedPreconditionError as error:
        os._exit(0 if "GRPC_ENABLE_FORK_SUPPORT" in str(error) else 2)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
kv.close()
print("done")
"""


def test_child_is_told_when_grpc_was_not_prepared_for_a_fork(tmp_path: Path) -> None:
    with daemon_process(tmp_path):
        ran = run_script(_LATE, make_config(tmp_path).daemon.socket)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


_STRAY = """
import ctypes, resource, sys
from hybridkv.service.client import connect
from tests.service.client.conftest import chain_of, make_space, store

kv = connect(sys.argv[1], make_space())
keys = chain_of(kv, 1)
store(kv, keys)
address = kv.acquire(keys).array(0).ctypes.data
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("writing", flush=True)
ctypes.memset(address, 1, 1)
print("written", flush=True)
"""


def test_stray_write_into_a_sealed_block_faults(tmp_path: Path) -> None:
    with daemon_process(tmp_path):
        ran = run_script(_STRAY, make_config(tmp_path).daemon.socket)
    assert (ran.returncode, ran.stdout) == (-11, "writing\n"), ran.stderr


_UNCLOSED = """
import sys
from hybridkv.service.client import connect
from tests.service.client.conftest import chain_of, make_space, store

kv = connect(sys.argv[1], make_space())
store(kv, chain_of(kv, 2))
lease = kv.acquire(chain_of(kv, 2))
print("done")
"""


def test_process_that_never_closes_ends_quietly(tmp_path: Path) -> None:
    with daemon_process(tmp_path):
        ran = run_script(_UNCLOSED, make_config(tmp_path).daemon.socket)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
