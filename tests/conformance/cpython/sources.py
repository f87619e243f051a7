"""Load CPython's own lock tests from the `test` package of the running Python. Nothing of it is copied here.

The cases for threads are used unchanged. The cases for asyncio call `lock.release()` and `lock.locked()` without
`await`, and read `_waiters` and `_value`. For a lock on a server these four are requests, so the cases are compiled
with an `await` for each of them, and with no other change.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
from types import ModuleType
from typing import Any

import pytest

AWAITED_CALLS = frozenset({"release", "locked"})
AWAITED_ATTRIBUTES = frozenset({"_waiters", "_value"})
_ANSWER = "holdfast_answer"


def load(name: str) -> ModuleType:
    """A module of CPython's tests. Without it, the calling test module is skipped; in CI (CI=true) it fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        problem = f"CPython's own tests are not part of this Python ({error}); on Debian install libpython3-testsuite"
    if os.environ.get("CI") == "true":
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem, allow_module_level=True)


def load_awaited(name: str) -> ModuleType:
    """A copy of the module with a namespace of its own, in which calls that are requests to a server are awaited."""
    original = load(name)
    file = inspect.getfile(original)
    tree = ast.fix_missing_locations(_Awaiting().visit(ast.parse(inspect.getsource(original), file)))
    copy = ModuleType(name)
    setattr(copy, _ANSWER, _answer)
    exec(compile(tree, file, "exec"), vars(copy))  # noqa: S102  (CPython's own file, as importing would)
    return copy


class _Awaiting(ast.NodeTransformer):
    """In coroutines `x.release()` becomes `await answer(x.release())`, and `x._value` becomes `await x._value()`.

    Functions that are not coroutines stay as they are: a case that releases in one of them cannot run on our locks.
    """

    def __init__(self) -> None:
        self._in_coroutine = False

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._inside(node, in_coroutine=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._inside(node, in_coroutine=False)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._inside(node, in_coroutine=False)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_ours = isinstance(node.func, ast.Attribute) and node.func.attr in AWAITED_CALLS
        if not (self._in_coroutine and is_ours):
            return node
        answer = ast.Call(ast.Name(_ANSWER, ast.Load()), [node], [])
        return ast.copy_location(ast.Await(answer), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_read = isinstance(node.ctx, ast.Load) and node.attr in AWAITED_ATTRIBUTES
        if not (self._in_coroutine and is_read):
            return node
        return ast.copy_location(ast.Await(ast.Call(node, [], [])), node)

    def _inside(self, node: ast.AST, *, in_coroutine: bool) -> ast.AST:
        before, self._in_coroutine = self._in_coroutine, in_coroutine
        self.generic_visit(node)
        self._in_coroutine = before
        return node


async def _answer(value: Any) -> Any:
    """Await the value if it comes from our locks: a case may also use asyncio's own Condition."""
    return await value if inspect.isawaitable(value) else value
