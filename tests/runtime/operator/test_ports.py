from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import pytest

from tramfl.runtime.operator import ports
from tramfl.runtime.operator.ports import free_ports


def test_a_port_is_given_out_once_and_never_one_that_the_kernel_may_choose() -> None:
    found = [port for _ in range(4) for port in free_ports(100)]
    assert len(set(found)) == 400
    assert min(found) >= ports.FIRST_PORT
    assert max(found) < ports._first_of_kernel()


def test_two_processes_are_given_different_ports() -> None:
    code = "from tramfl.runtime.operator.ports import free_ports; print(*free_ports(300), flush=True); input()"
    with contextlib.ExitStack() as stack:
        others = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(2)
        ]
        given = [free_ports(300)]
        for other in others:
            assert other.stdout is not None
            given.append([int(word) for word in other.stdout.readline().split()])
        for other in others:
            other.communicate("\n")
    assert len({port for found in given for port in found}) == 900


def test_a_port_on_which_somebody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_ports(2)
    monkeypatch.setattr(ports, "_ports", iter([taken, free]))
    with socket.create_server(("127.0.0.1", taken)):
        assert free_ports(1) == [free]


def test_where_no_block_is_left_the_kernel_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_first_of_kernel", lambda: 0)
    port = next(ports._claimed())
    with socket.create_server(("127.0.0.1", port)) as listener:
        assert listener.getsockname()[1] == port > 0
