"""Passwords that are given as a function, for rotated credentials and for tokens of a cloud's IAM.

The function is called for each new connection. It runs on its own thread, so it may block; the connection waits for it
until its own deadline. The password is not stored, and no message shows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from holdfast.backends.net.calls import BackgroundCall
from holdfast.backends.net.poller import Poller
from holdfast.errors import BackendUnavailable, ConfigurationError
from holdfast.runtimes import system
from holdfast.url import Address, RunCoroutine


class PasswordFunction:
    """A function of the user that returns the password."""

    __slots__ = ("_argument", "_function", "_run_coroutine")

    def __init__(self, argument: str, function: Callable[[], object], run_coroutine: RunCoroutine | None) -> None:
        """`argument` is the keyword of the client. `run_coroutine` is needed if the function returns an awaitable."""
        self._argument, self._function, self._run_coroutine = argument, function, run_coroutine

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", None) or type(self._function).__qualname__
        return f"{self._argument}={name}"

    async def ask(self, url: str, poller: Poller, until: float) -> str:
        """The present password.

        Raises:
            BackendUnavailable: the function failed, or did not return before `until`. Nothing was sent.
            ConfigurationError: it returned something else than text.
        """
        call = BackgroundCall(lambda: self._call(until), "password")
        try:
            call.start()
            is_done = await poller.wait_done(call, until)
            value = call.result() if is_done else None
        except ConfigurationError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())
            problem = f"the function {self!r} raised {type(error).__name__}: {words}".removesuffix(": ")
            raise BackendUnavailable(backend=url, problem=problem) from error
        except BaseException:
            call.abandon()
            raise
        if not is_done:
            call.abandon()
            raise BackendUnavailable(backend=url, problem=f"the function {self!r} did not return in time")
        if not isinstance(value, str):  # the value itself may be a secret
            raise ConfigurationError(f"the function {self!r} must return a str, not {type(value).__name__}")
        return value

    def _call(self, until: float) -> object:
        value = self._function()
        if not inspect.isawaitable(value):
            return value
        if self._run_coroutine is None:
            if inspect.iscoroutine(value):
                value.close()
            raise ConfigurationError(f"the function {self!r} returned a coroutine: only AsyncClient awaits it")
        return self._run_coroutine(_awaited(value), until - system.now())


Password = str | PasswordFunction


async def ask_password(password: Password, url: str, poller: Poller, until: float) -> str:
    """The password of a new connection. Raises as `PasswordFunction.ask` does."""
    return password if isinstance(password, str) else await password.ask(url, poller, until)


def password_of(address: Address, in_url: str | None, keyword: str = "password") -> Password | None:
    """The password in the URL, or that of the keyword.

    Raises:
        ConfigurationError: both are given.
    """
    given = address.passwords.get(keyword)
    if given is None:
        return in_url
    if in_url:
        raise ConfigurationError(f"the {keyword} is given in the url and as a keyword: give it once")
    return given if isinstance(given, str) else PasswordFunction(keyword, given, address.run_coroutine)


async def _awaited(value: Awaitable[object]) -> object:
    return await value
