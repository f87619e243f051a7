"""Logins, permissions and TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.nats.conftest import StartServer
from tests.support.permissions import statements, use_everything
from tests.support.redis.certificates import Certificates

ADMIN = {"user": "admin", "pass": "admin"}


def with_admin(replaced: dict[str, str] | None = None) -> str:
    """The configuration of the docs, and a user with all permissions, by which tests see that the server answers."""
    changes = {"users = [": "users = [{user: admin, password: admin}", **(replaced or {})}
    return "\n".join(statements("nats", "A user for locks", changes))


def test_a_user_with_the_permissions_of_the_docs_can_do_everything(start_server: StartServer) -> None:
    server = start_server(with_admin(), **ADMIN)

    use_everything(f"nats://app:secret@{server.address}")


def test_the_error_names_a_missing_permission(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server(with_admin({'"$KV.holdfast.>", ': ""}), **ADMIN)

    with pytest.raises(holdfast.AccessDenied, match=r"\$KV\.holdfast\.lock\.a"):
        open_client(f"nats://app:secret@{server.address}").lock("a").acquire()


@pytest.mark.parametrize("login", ["app:wr0ng@", ":wr0ng@", ""])
def test_a_wrong_login_is_refused(start_server: StartServer, open_client: OpenClient, login: str) -> None:
    server = start_server('authorization { user: app, password: "secret" }', user="app", **{"pass": "secret"})

    with pytest.raises(holdfast.ConfigurationError, match="refuses this login") as refused:
        open_client(f"nats://{login}{server.address}").lock("a").acquire()
    assert "wr0ng" not in str(refused.value)


def test_a_token_is_a_password_without_a_user(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server('authorization { token: "t0ken" }', auth_token="t0ken")  # noqa: S106 (of a test)

    with open_client(f"nats://:t0ken@{server.address}").lock("a"):
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def take_in_task(url: str) -> None:
    async def take() -> None:
        async with holdfast.AsyncClient(url) as client, client.lock("a", timeout=0):
            assert [info.name for info in await client.locks()] == ["a"]

    asyncio.run(take())


def take_in_thread(url: str) -> None:
    with holdfast.Client(url) as client, client.lock("a", timeout=0):
        assert [info.name for info in client.locks()] == ["a"]


def test_tls_checks_the_server_and_works_for_threads_and_tasks(
    start_server: StartServer, certificates: Certificates, tmp_path: Path
) -> None:
    tls = f'tls {{ cert_file: "{certificates.server}", key_file: "{certificates.server_key}" }}'
    server = start_server(f"allow_non_tls: true\n{tls}")
    url = f"natss://{server.address}?ca_certs={certificates.ca}"

    take_in_thread(url)
    take_in_task(url)
    with pytest.raises(holdfast.BackendUnavailable, match="certificate verify failed"):
        take_in_thread(f"natss://{server.address}?ca_certs={certificates.other_ca}")
