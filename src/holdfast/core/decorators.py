"""How the calls of a decorated function acquire their lock: its name, the timeout, and the result if it is busy.

Everything that does not depend on a call is checked when the function is decorated. The decorators themselves are in
threads/decorators.py, which calls the function, and in aio/decorators.py, which awaits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

from holdfast.core import names
from holdfast.core.locks import UNSET, LockOptions, Unset, make_call_spec
from holdfast.core.periods import Period, make_period
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from inspect import Signature

    from holdfast.core.leases import LockSpec

T = TypeVar("T")
Name = str | Callable[..., str]
WithLease = Callable[[object, tuple[Any, ...], dict[str, Any]], T]  # lease, args, kwargs
SpecOf = Callable[[tuple[Any, ...], dict[str, Any]], "LockSpec"]

_BUSY = ("wait", "skip", "raise")
_OWN_OPTIONS = {"locked": ("name_of", "busy", "skipped", "lease"), "once_per": ("offset", "skipped", "lease")}


class Plan(NamedTuple):
    """The arguments of `locked` or `once_per`, checked."""

    name: Name
    spec: LockSpec  # of every call, without the name
    timeout: float | None
    skips: bool  # a call returns `skipped` if the lock is busy
    skipped: Any  # the result of a skipped call
    lease: str | None  # the parameter that is filled in with the lease
    period: Period | None = None  # there is at most one run in each

    @property
    def decorator(self) -> str:
        """The name of the decorator, for messages."""
        return "locked" if self.period is None else "once_per"


def make_plan_once(
    period: object, offset: object, name: object, *, skipped: object, lease: object, ttl: float, options: LockOptions
) -> Plan:
    """The plan of `once_per`: a run is skipped if the previous one still holds the lock.

    Raises:
        ConfigurationError: names the argument and the fix.
    """
    checked = make_period(period, offset)
    if "timeout" in options and options["timeout"] is None:
        raise ConfigurationError("once_per() would never skip with timeout=None: give seconds, or leave timeout out")
    plan = make_plan(name, busy="skip", skipped=skipped, lease=lease, ttl=ttl, options=options, function="once_per")
    return plan._replace(period=checked)


def make_plan_locked(
    name: object,
    name_of: object,
    *,
    busy: object,
    skipped: object,
    lease: object,
    ttl: float,
    options: LockOptions,
) -> Plan:
    """The plan of `locked`, which takes a function for the name by keyword only.

    So a positional function is the one to decorate, and the call of `locked` is missing.

    Raises:
        TypeError: `@client.locked` without a call.
        ConfigurationError: names the argument and the fix.
    """
    if callable(name):
        raise TypeError(
            f'locked needs the name of a lock: write @client.locked("name") above {_title(name)}; '
            "a function that returns the name is given as name_of="
        )
    if name_of is not None and not callable(name_of):
        raise ConfigurationError(f"name_of must be a function that returns the name, not {name_of!r}: text is the name")
    if (name is None) == (name_of is None):
        raise ConfigurationError("locked() needs either the name or name_of=, a function that returns it")
    return make_plan(
        name if name_of is None else name_of, busy=busy, skipped=skipped, lease=lease, ttl=ttl, options=options
    )


def make_plan(
    name: object,
    *,
    busy: object,
    skipped: object,
    lease: object,
    ttl: float,
    options: LockOptions,
    function: str = "locked",
) -> Plan:
    """Check everything that does not need the function.

    Raises:
        ConfigurationError: names the argument and the fix.
    """
    if not callable(name):
        names.check_name(name)
    if busy not in _BUSY:
        raise ConfigurationError(f"busy must be 'wait', 'skip' or 'raise', not {busy!r}")
    if lease is not None and not isinstance(lease, str):
        raise ConfigurationError(f"lease must be the name of a parameter, or None, not {lease!r}")
    if busy != "skip" and not isinstance(skipped, Unset):
        raise ConfigurationError("skipped is what a call returns with busy='skip': give both, or none")
    names.refuse_unknown(function, options, (*_OWN_OPTIONS[function], *LockOptions.__annotations__))
    spec, timeout = make_call_spec(function, busy, ttl=ttl, options=options)
    return Plan(
        name=cast("Name", name),
        spec=spec,
        timeout=timeout,
        skips=busy == "skip",
        skipped=None if skipped is UNSET else skipped,
        lease=lease,
    )


def spec_of(plan: Plan, function: Callable[..., Any], *, is_async: bool) -> tuple[SpecOf, Signature | None]:
    """A function that returns the LockSpec of each call, and the signature that callers see, if it is another one.

    Raises:
        ConfigurationError: this kind of function cannot be decorated, or it lacks the named parameters.
    """
    called, visible_signature = check_function(function, plan.lease, is_async=is_async, decorator=plan.decorator)
    name, spec = plan.name, plan.spec
    if not spec.group:
        spec = spec._replace(group=name if isinstance(name, str) else called.removesuffix("()"))
    if not isinstance(name, str):

        def by_function(args: tuple[Any, ...], kwargs: dict[str, Any]) -> LockSpec:
            return spec._replace(name=names.check_lock_name(name(*args, **kwargs)))

        return by_function, visible_signature
    text_of = text_for(name, function, visible_signature)
    if isinstance(text_of, str):
        fixed = spec._replace(name=names.check_lock_name(text_of))
        return lambda _args, _kwargs: fixed, visible_signature

    def by_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> LockSpec:
        return spec._replace(name=names.check_lock_name(text_of(args, kwargs)))

    return by_arguments, visible_signature


def check_function(
    function: Callable[..., Any], lease: str | None, *, is_async: bool, decorator: str
) -> tuple[str, Signature | None]:
    """The name of the function for messages, and the signature that callers see, if it is another one.

    Raises:
        ConfigurationError: this kind of function cannot be decorated.
    """
    _check_kind(function, is_async=is_async, decorator=decorator)
    return _title(function), None if lease is None else _without_lease(function, lease)


def text_for(
    template: str, function: Callable[..., Any], visible_signature: Signature | None, argument: str = "name"
) -> str | Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """The text of a template: itself if it has no fields, else a function of the arguments of a call.

    Raises:
        ConfigurationError: the function lacks a named parameter.
    """
    pieces = parse_template(template, argument)
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(map(str, pieces))
    called, signature = _title(function), visible_signature or _signature(function)
    for piece in pieces:
        if isinstance(piece, TemplateField) and piece.parameter not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigurationError(
                f"{argument} {template!r} has the field {piece.text!r}, and {called} has no such parameter "
                f"(it has: {known})"
            )

    def by_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:  # inspect does not name the function
            raise TypeError(f"{called} {error}") from None
        bound.apply_defaults()
        given = bound.arguments
        return "".join([piece if isinstance(piece, str) else piece.of(given) for piece in pieces])

    return by_arguments


def refuse_coroutine(function: object, decorator: str) -> NoReturn:
    """A plain function returned a coroutine, whose body would run after the release of the lock."""
    raise ConfigurationError(
        f"{_title(function)} returned a coroutine: use AsyncClient.{decorator} on a coroutine function"
    )


def show_signature(function: Any, signature: Signature | None) -> None:
    """Let `inspect` report this signature for a decorated function, unless it is None."""
    if signature is not None:
        function.__signature__ = signature


class TemplateField(NamedTuple):
    """One replacement field of a name, as in str.format: a parameter, attributes and keys, and the format."""

    argument: str  # the one that has this field, for messages
    text: str
    parameter: str
    path: tuple[tuple[bool, str | int], ...]  # is it an attribute (True) or a key, and its name
    conversion: str | None
    format_spec: str

    def of(self, given: Mapping[str, Any]) -> str:
        """The text of this field.

        Raises:
            ConfigurationError: the values have no such attribute or key, or no text.
        """
        try:
            value = given[self.parameter]
            for is_attribute, key in self.path:
                value = getattr(value, cast("str", key)) if is_attribute else value[key]
            if self.conversion is not None:
                value = _CONVERSIONS[self.conversion](value)
            elif _has_no_text(type(value)):
                raise ConfigurationError(
                    f"a {type(value).__name__} has no text of its own, only an address that differs in every process"
                )
            return format(value, self.format_spec)
        except Exception as error:
            problem = error if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
            raise ConfigurationError(
                f"the field {self.text!r} of the lock's {self.argument} cannot be filled: {problem}"
            ) from error


_CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


def _has_no_text(kind: type) -> bool:
    """Its text would be <… object at 0x7f…>."""
    return all(getattr(kind, how) is getattr(object, how) for how in ("__repr__", "__str__", "__format__"))


def parse_template(text: str, argument: str = "name") -> list[str | TemplateField]:
    """The literal texts and the fields of a name or key.

    Raises:
        ConfigurationError: it is not a format, or has a field of another form.
    """
    import string

    pieces: list[str | TemplateField] = []
    try:
        for literal, field, format_spec, conversion in string.Formatter().parse(text):
            if literal:
                pieces.append(literal)
            if field is not None:
                pieces.append(_field(argument, field, format_spec or "", conversion))
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(
            f"{argument} {text!r} cannot be read as a format: {error}; "
            f"write {{{{ and }}}} for braces that belong to the {argument}"
        ) from None
    return pieces


def _field(argument: str, text: str, format_spec: str, conversion: str | None) -> TemplateField:
    import re

    match = re.fullmatch(r"(\w+)((?:\.\w+|\[[^\[\]]+\])*)", text)
    if match is None or match[1].isdigit():
        raise ConfigurationError(
            f"{argument} has the field {text!r}: write the name of a parameter, "
            "with .attribute or [key] behind it if need be"
        )
    steps = re.findall(r"\.(\w+)|\[([^\[\]]+)\]", match[2])
    for word in (match[1], *(attribute for attribute, _ in steps)):
        if word.startswith("_"):
            raise ConfigurationError(
                f"{argument} has the field {text!r}: what begins with _ is private; name_of= can use it"
            )
    if conversion is not None and conversion not in _CONVERSIONS:
        raise ConfigurationError(f"{argument} has the unknown conversion {'!' + conversion!r}: there are !s, !r and !a")
    if "{" in format_spec:
        raise ConfigurationError(
            f"{argument} has a field within the format of the field {text!r}: name_of= can compute it"
        )
    path = tuple((True, attribute) if attribute else (False, _key(key)) for attribute, key in steps)
    return TemplateField(argument, text, match[1], path, conversion, format_spec)


def _key(text: str) -> str | int:
    return int(text) if text.isdecimal() else text  # as str.format does


def _check_kind(function: Any, *, is_async: bool, decorator: str) -> None:
    import functools
    import inspect

    if isinstance(function, staticmethod | classmethod):
        word = f"@{type(function).__name__}"
        raise ConfigurationError(f"{decorator} must stand below {word}, next to the function: put {word} above it")
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(
            f"{decorator} is for functions and methods, not for {function!r}: "
            f'@client.{decorator}("{"key" if decorator == "once" else "name"}") above a function'
        )
    called = _title(function)
    is_plain = inspect.isroutine(function) or isinstance(function, functools.partial)
    inspected = function if is_plain else type(function).__call__  # a callable object
    if inspect.isasyncgenfunction(inspected):
        raise ConfigurationError(
            f"{called} is an async generator, whose body runs after the call: take it inside, with `async with` on "
            "the lock of an AsyncClient"
        )
    if inspect.isgeneratorfunction(inspected):
        raise ConfigurationError(
            f"{called} is a generator, whose body runs after the call: take it inside, with `with` on the lock of a "
            "Client"
        )
    if inspect.iscoroutinefunction(inspected) and not is_async:
        raise ConfigurationError(f"{called} is a coroutine function: use AsyncClient.{decorator} for it")
    if is_async and not inspect.iscoroutinefunction(inspected):
        raise ConfigurationError(f"{called} is not a coroutine function: use Client.{decorator} for it")


def with_lease(function: Callable[..., T], parameter: str) -> WithLease[T]:
    """A function that calls `function` with a lease and the arguments of a call.

    Raises:
        ConfigurationError: it has no such parameter, or not in an allowed position.
    """
    parameters = _signature(function).parameters
    known = parameters.get(parameter)
    position = [*parameters].index(parameter) if known else 0
    is_by_keyword = known is not None and known.kind is known.KEYWORD_ONLY
    is_variable = known is None or known.kind in (known.VAR_POSITIONAL, known.VAR_KEYWORD)
    if is_variable or (position > _LAST_POSITION and not is_by_keyword):
        raise ConfigurationError(
            f"lease={parameter!r} must name the first parameter of {_title(function)}, the one behind self, or one "
            f"behind a *: def f({parameter}, …), def f(self, {parameter}, …) or def f(…, *, {parameter})"
        )

    def call(lease: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        if is_by_keyword or len(args) < position:  # or the parameter before this one was passed by keyword
            return function(*args, **kwargs, **{parameter: lease})
        return function(*args[:position], lease, *args[position:], **kwargs)

    return call


_LAST_POSITION = 1  # after self


def _without_lease(function: Callable[..., Any], lease: str) -> Signature:
    """The signature for callers, without the lease."""
    signature = _signature(function)
    return signature.replace(parameters=[each for each in signature.parameters.values() if each.name != lease])


def _signature(function: Callable[..., Any]) -> Signature:
    import inspect

    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the parameters of {_title(function)} cannot be known ({error}): use name_of="
        ) from error


def _title(function: object) -> str:
    return f"{getattr(function, '__qualname__', None) or type(function).__qualname__}()"
