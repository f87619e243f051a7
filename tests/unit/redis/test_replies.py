"""Hazard: "refused", "perhaps executed" and "another type" are confused."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.backends.redis.io.errors import Redirection, code_of, redirection, refusal
from holdfast.backends.redis.io.resp import ErrorReply
from holdfast.url_parts import Node

WRAPPED = "ERR Error running script (call to f_{sha}): @user_script:{line}: {inside}"
SHA = "c6a23c8f771fa36b9a284b255633d630d29580bd"


def error_of(text: str) -> holdfast.HoldfastError:
    return refusal(ErrorReply(text), "redis://cache/0", Node("cache", 6379), "a")


@pytest.mark.parametrize(
    "text",
    [
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "READONLY You can't write against a read only replica. script: c6a2, on @user_script:7.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOREPLICAS Not enough good replicas to write.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "ERR max number of clients reached",
        "ERR unknown command 'EVALSHA', with args beginning with: ",
        WRAPPED.format(sha=SHA, line=" 3", inside="-READONLY You can't write against a read only replica."),
        WRAPPED.format(sha=SHA, line="12", inside="OOM command not allowed when used memory > 'maxmemory'."),
    ],
)
def test_an_error_before_execution_is_backend_unavailable(text: str) -> None:
    error = error_of(text)

    assert type(error) is holdfast.BackendUnavailable
    assert "cache:6379" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "ERR value is not an integer or out of range script: c6a2, on @user_script:7.",
        "UNKILLABLE Sorry the script already executed write commands against the dataset.",
        "ERR Error running script (call to f_c6a2): @user_script:9: attempt to index a nil value",
        "SOMETHING that is unknown",
        "",
    ],
)
def test_an_unknown_error_is_outcome_unknown(text: str) -> None:
    assert type(error_of(text)) is holdfast.OutcomeUnknown


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "WRONGTYPE Operation against a key holding the wrong kind of value script: c6a2, on @user_script:2.",
        WRAPPED.format(sha=SHA, line=" 2", inside="-WRONGTYPE Operation against a key holding the wrong kind of value"),
        WRAPPED.format(sha=SHA, line="2", inside="WRONGTYPE Operation against a key holding the wrong kind of value "),
    ],
)
def test_a_key_of_another_type_names_the_lock(text: str) -> None:
    error = error_of(text)

    assert isinstance(error, holdfast.NameConflict)
    assert error.lock == "a"


def test_a_missing_permission_is_access_denied_when_nothing_was_executed() -> None:
    error = error_of("NOPERM this user has no permissions to run the 'evalsha' command")

    assert type(error) is holdfast.AccessDenied
    assert "'evalsha'" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        WRAPPED.format(
            sha=SHA, line="1", inside="@user_script: 1: The user executing the script can't run this command"
        ),
        "ERR The user executing the script can't run this command or subcommand script: c6a2, on @user_script:1.",
        "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
        "ERR ACL failure in script: User u has no permissions to run the 'set' command script: on @user_script:1.",
    ],
)
def test_a_missing_permission_inside_a_script_is_outcome_unknown_and_names_the_fix(text: str) -> None:
    error = error_of(text)

    assert type(error) is holdfast.OutcomeUnknown
    assert "lacks a permission" in str(error)


def test_redirections_are_parsed() -> None:
    assert redirection(ErrorReply("MOVED 3999 10.0.0.1:6381")) == Redirection(3999, "10.0.0.1", 6381, is_final=True)
    assert redirection(ErrorReply("ASK 1 ::1:7000")) == Redirection(1, "::1", 7000, is_final=False)
    assert redirection(ErrorReply("MOVED 1 :7000")) == Redirection(1, "", 7000, is_final=True)
    assert redirection(ErrorReply("ERR no")) is None
    assert code_of(ErrorReply("NOSCRIPT No matching script. Please use EVAL.")) == "NOSCRIPT"
