"""Access: TLS, client certificates, users and passwords, expired tokens, missing permissions."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.etcd.helpers import acquired, waiting
from tests.support.etcd.servers import Server
from tests.support.redis.certificates import Certificates
from tests.support.server_process import running

SECRET = "s3cret/word"  # noqa: S105  of a server of these tests


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Server]:
    """A server with authentication; the user `app` may use the keys below holdfast/."""
    with running(Server(folder / "guarded")) as server:
        server.call("auth/user/add", name="root", password=SECRET)
        server.call("auth/user/add", name="app", password=SECRET)
        server.call("auth/role/add", name="root")
        server.call("auth/role/add", name="locks")
        permission = {"permType": "READWRITE", "key": "aG9sZGZhc3Qv", "range_end": "aG9sZGZhc3Qw"}  # holdfast/ to …0
        server.call("auth/role/grant", name="locks", perm=permission)
        server.call("auth/user/grant", user="root", role="root")
        server.call("auth/user/grant", user="app", role="locks")
        server.call("auth/enable")
        yield server


def as_app(server: Server, *, word: str = "s3cret%2Fword", options: str = "") -> str:
    return f"etcd://app:{word}@{server.address}{options}"


def test_a_user_with_a_password_is_accepted(guarded: Server, open_client: OpenClient) -> None:
    acquired(open_client(as_app(guarded)), "a").release()


def test_a_token_is_replaced_when_the_server_refuses_it(guarded: Server, open_client: OpenClient) -> None:
    holder, waiter = open_client(as_app(guarded)), open_client(as_app(guarded))
    lease = acquired(holder, "a")

    with waiting(waiter, "a"):
        guarded.kill()  # the server keeps tokens in memory, and loses them
        guarded.start()
        lease.renew()
        lease.release()


def test_an_error_names_the_missing_user_and_password(guarded: Server, open_client: OpenClient) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="requires a user and a password"):
        open_client(guarded.url).lock("a").acquire(timeout=0)


def test_a_wrong_password_is_not_shown(guarded: Server, open_client: OpenClient) -> None:
    client = open_client(as_app(guarded, word="guess"))

    with pytest.raises(holdfast.ConfigurationError, match="did not accept this user") as caught:
        client.lock("a").acquire(timeout=0)

    assert "guess" not in str(caught.value) + repr(client)


def test_a_missing_permission_is_named(guarded: Server, open_client: OpenClient) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="lacks a permission"):
        open_client(as_app(guarded, options="?prefix=elsewhere/")).lock("a").acquire(timeout=0)


def test_a_user_is_ignored_when_authentication_is_off(server: Server, open_client: OpenClient) -> None:
    acquired(open_client(as_app(server)), "ignored-user").release()


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Certificates:
    return Certificates(folder / "certificates")


@pytest.fixture(scope="module")
def secure(folder: Path, certificates: Certificates) -> Iterator[Server]:
    """A server with TLS only, which requires a client certificate."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.load_cert_chain(str(certificates.client), str(certificates.client_key))
    files = ["--cert-file", str(certificates.server), "--key-file", str(certificates.server_key)]
    files += ["--trusted-ca-file", str(certificates.ca), "--client-cert-auth"]
    with running(Server(folder / "secure", options=files, tls=context)) as server:
        yield server


def options(certificates: Certificates) -> dict[str, Any]:
    return {
        "ca_certs": str(certificates.ca),
        "certfile": str(certificates.client),
        "keyfile": str(certificates.client_key),
    }


def test_locks_work_over_tls_with_a_client_certificate(
    secure: Server, certificates: Certificates, open_client: OpenClient
) -> None:
    holder, waiter = (open_client(secure.url, **options(certificates)) for _ in range(2))
    lease = acquired(holder, "a")

    with waiting(waiter, "a"):
        lease.renew()
        lease.release()


async def test_asyncio_waits_over_tls_too(secure: Server, certificates: Certificates) -> None:
    async with (
        holdfast.AsyncClient(secure.url, **options(certificates)) as holder,
        holdfast.AsyncClient(secure.url, **options(certificates)) as waiter,
    ):
        lease = await holder.lock("b").acquire()
        assert lease is not None
        pending = asyncio.create_task(waiter.lock("b").acquire(timeout=30))
        while not (await holder.inspect("b")).waiters:
            await asyncio.sleep(0.01)
        await lease.release()
        next_lease = await pending
        assert next_lease is not None
        await next_lease.release()


@pytest.mark.parametrize("missing", ["ca_certs", "certfile"])
def test_an_acquire_fails_when_the_client_has_no_certificate_or_another_ca(
    secure: Server, certificates: Certificates, open_client: OpenClient, missing: str
) -> None:
    client_options = options(certificates)
    if missing == "ca_certs":
        client_options["ca_certs"] = str(certificates.other_ca)
    else:
        del client_options["certfile"], client_options["keyfile"]

    with pytest.raises(holdfast.BackendError):
        open_client(secure.url, **client_options).lock("a").acquire(timeout=0)


def test_the_error_names_a_client_certificate_with_a_common_name(
    folder: Path, certificates: Certificates, open_client: OpenClient
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.load_cert_chain(str(certificates.client), str(certificates.client_key))
    files = ["--cert-file", str(certificates.server), "--key-file", str(certificates.server_key)]
    files += ["--trusted-ca-file", str(certificates.ca), "--client-cert-auth"]
    with running(Server(folder / "named", options=files, tls=context)) as server:
        server.call("auth/user/add", name="root", password=SECRET)
        server.call("auth/role/add", name="root")
        server.call("auth/user/grant", user="root", role="root")
        server.call("auth/enable")

        url = server.url.replace("etcds://", "etcds://root:s3cret%2Fword@")
        with pytest.raises(holdfast.ConfigurationError, match="no client certificate that has a CommonName"):
            open_client(url, **options(certificates)).lock("a").acquire(timeout=0)
