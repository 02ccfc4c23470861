"""The filter of system calls, executed as the kernel would: a call names nobody but its caller."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_actuator.local import seccomp

PID = 4711
ALLOWED, FORBIDDEN = 0x7FFF0000, 0x00050001
KILL = {"x86_64": 62, "aarch64": 129}
machines = pytest.mark.parametrize("machine", KILL)


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Execute the filter on one call and return the kernel's verdict; classic BPF with the codes that it uses."""
    given = {0: number, 4: seccomp.OF_MACHINES[machine][0] if audit is None else audit}
    given |= {16 + 8 * place: value & 0xFFFFFFFF for place, value in enumerate((*arguments, 0, 0, 0, 0))}
    program, at, loaded = seccomp.program(machine, PID), 0, 0
    while True:
        code, holds, fails, operand = program[at]
        at += 1
        match code:
            case 0x20:
                loaded = given[operand]
            case 0x15:
                at += holds if loaded == operand else fails
            case 0x35:
                at += holds if loaded >= operand else fails
            case 0x06:
                return operand
            case _:
                pytest.fail(f"{code:#x} is no code of the filter")


@machines
def test_a_call_names_nobody_but_its_caller(machine: str) -> None:
    for number, argument in seccomp.OF_MACHINES[machine][2].items():
        named = [(*(7,) * argument, pid) for pid in (0, PID, 1, PID + 1, -1)]
        assert [verdict(machine, number, *each) for each in named] == [ALLOWED] * 2 + [FORBIDDEN] * 3, number


@machines
def test_a_call_about_kinds_of_processes_means_one_process_and_names_its_caller(machine: str) -> None:
    for number, one in seccomp.OF_MACHINES[machine][3].items():
        assert verdict(machine, number, one, 0) == verdict(machine, number, one, PID) == ALLOWED
        assert verdict(machine, number, one, 1) == FORBIDDEN
        assert {verdict(machine, number, kind, 0) for kind in range(5) if kind != one} == {FORBIDDEN}


@machines
def test_calls_by_other_numbers_are_forbidden(machine: str) -> None:
    """A program may use the calls of 32 bits, or x86-64's second set of numbers."""
    assert verdict(machine, KILL[machine], audit=0x40000003) == FORBIDDEN
    assert verdict(machine, seccomp.FIRST_OF_X32 + 302, 0) == FORBIDDEN
    forbidden = (*seccomp.HANDLES, seccomp.RING, *seccomp.FILE_HANDLES[machine], *seccomp.OF_MACHINES[machine][4])
    assert {verdict(machine, number, 0) for number in forbidden} == {FORBIDDEN}


@machines
def test_a_socket_is_of_a_kind_whose_port_landlock_looks_at(machine: str) -> None:
    number = seccomp.SOCKET[machine]
    assert {verdict(machine, number, *made) for made in ((2, 1, 0), (10, 1, 6), (1, 1, 0))} == {ALLOWED}
    assert {verdict(machine, number, *made) for made in ((2, 1, 262), (10, 1, 262), (43, 1, 0))} == {FORBIDDEN}


@machines
def test_a_file_is_not_leased(machine: str) -> None:
    number = seccomp.FCNTL[machine]
    assert {verdict(machine, number, 3, command, 1) for command in (1024, 1040)} == {FORBIDDEN}
    assert {verdict(machine, number, 3, command, 1) for command in (0, 3, 6, 1025, 1030)} == {ALLOWED}


@machines
@given(st.integers(0, 460), st.tuples(*[st.integers(0, 2**64 - 1)] * 4))
def test_every_other_call_is_allowed(machine: str, number: int, arguments: tuple[int, ...]) -> None:
    _, _, by_process, by_kind, shared = seccomp.OF_MACHINES[machine]
    looked_at = (seccomp.SOCKET[machine], seccomp.FCNTL[machine], *seccomp.FILE_HANDLES[machine])
    if number not in {*seccomp.HANDLES, seccomp.RING, *looked_at, *by_process, *by_kind, *shared}:
        assert verdict(machine, number, *arguments) == ALLOWED


def test_a_kind_of_machine_whose_numbers_nobody_knows_has_no_filter() -> None:
    assert seccomp.available("x86_64") == (os.uname().machine == "x86_64")
    assert not seccomp.available("riscv64")
