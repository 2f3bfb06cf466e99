"""The identity of a process survives a reused pid, a zombie and a reboot."""

import os
import subprocess
import sys

from hybridkv.tiers.process import boot_id, is_same_process, own_start_time, start_time


def test_this_process_is_itself() -> None:
    assert len(boot_id()) == 16
    assert is_same_process(os.getpid(), own_start_time(), boot_id())


def test_another_start_time_or_boot_is_another_process() -> None:
    assert not is_same_process(os.getpid(), own_start_time() - 1, boot_id())
    assert not is_same_process(os.getpid(), own_start_time(), bytes(16))


def test_a_killed_process_is_gone_before_it_is_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(child.pid)
    assert started is not None
    assert started >= own_start_time()
    assert is_same_process(child.pid, started, boot_id())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert start_time(child.pid) is None
    child.communicate()
    assert not is_same_process(child.pid, started, boot_id())


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields() -> None:
    code = (
        "import os; open('/proc/self/comm', 'w').write('a) R (b c'); print('named', flush=True); input()"  # 15 at most
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    before = start_time(child.pid)
    assert child.stdout is not None
    assert child.stdout.readline() == b"named\n"
    assert start_time(child.pid) == before
    child.communicate(b"\n")


def test_no_process_has_no_start_time() -> None:
    assert start_time(2**22 + 1) is None  # above the kernel's highest pid
