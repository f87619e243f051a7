"""Hazard: a login by password, TLS, client certificate or socket that is wrongly accepted or refused, or is shown."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import BackendUnavailable
from tests.integration.conftest import OpenClient
from tests.support.postgresql.servers import Server
from tests.support.redis.certificates import Certificates
from tests.support.server_process import running

SECRET = "s3:cr/t@%"  # noqa: S105  (of this test only)
QUOTED = "s3%3Acr%2Ft%40%25"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured_server(folder: Path, certificates: Certificates) -> Iterator[Server]:
    """TLS only; "app" by its password, "holdfast test client" by its certificate; the superuser by the socket."""
    folder /= "secured_server"
    settings = ["ssl=on"]
    for name, path in (("cert", certificates.server), ("key", certificates.server_key), ("ca", certificates.ca)):
        settings.append(f"ssl_{name}_file={folder / path.name}")
    folder.mkdir()
    for path in (certificates.server, certificates.server_key, certificates.ca):
        copy = Path(shutil.copy(path, folder))
        copy.chmod(0o600)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(copy, nobody.pw_uid, nobody.pw_gid)
    server = Server(folder, settings=settings)
    with running(server):
        server.rows(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{SECRET}'")
        server.rows('CREATE ROLE "holdfast test client" LOGIN SUPERUSER')
        (folder / "data" / "pg_hba.conf").write_text(
            "local all postgres trust\nlocal all app scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n"
            'hostssl all app 127.0.0.1/32 scram-sha-256\nhostssl all "holdfast test client" 127.0.0.1/32 cert\n'
        )
        server.rows("SELECT pg_reload_conf()")
        yield server


def use(client: holdfast.Client) -> None:
    with client.lock("a", timeout=0):
        pass


def test_a_password_over_tls_is_accepted(
    secured_server: Server, certificates: Certificates, open_client: OpenClient
) -> None:
    client = open_client(
        f"postgresql://app:{QUOTED}@127.0.0.1:{secured_server.port}/postgres?sslmode=verify-full&sslrootcert={certificates.ca}"
    )

    use(client)

    assert SECRET not in repr(client)
    assert QUOTED not in client.url


@pytest.mark.parametrize("url", ["postgresql://app:wr0ng@{host}/postgres", "postgresql://app@{host}/postgres"])
def test_a_wrong_password_is_refused_and_not_shown(secured_server: Server, open_client: OpenClient, url: str) -> None:
    with pytest.raises(BackendUnavailable, match="app") as caught:
        use(open_client(url.format(host=f"127.0.0.1:{secured_server.port}")))

    assert "wr0ng" not in str(caught.value)


def test_a_server_certificate_of_another_authority_is_refused(
    secured_server: Server, certificates: Certificates, open_client: OpenClient
) -> None:
    url = f"postgresql://app:{QUOTED}@127.0.0.1:{secured_server.port}/postgres?sslmode=verify-full"

    with pytest.raises(BackendUnavailable, match="certificate"):
        use(open_client(f"{url}&sslrootcert={certificates.other_ca}"))


def test_tls_and_login_of_a_connection_are_adopted(secured_server: Server, certificates: Certificates) -> None:
    where: dict[str, Any] = {"host": "127.0.0.1", "port": secured_server.port, "dbname": "postgres", "user": "app"}

    with psycopg.connect(**where, password=SECRET, sslmode="verify-full", sslrootcert=str(certificates.ca)) as theirs:
        with holdfast.Client(theirs) as client:
            use(client)
        parameters = client._address.client.parameters  # type: ignore[attr-defined]  # a PostgresqlConfig

    assert (parameters["sslmode"], parameters["sslrootcert"]) == ("verify-full", str(certificates.ca))
    assert SECRET not in repr(client) + repr(client._address)


def test_the_login_fails_without_tls(secured_server: Server, open_client: OpenClient) -> None:
    with pytest.raises(BackendUnavailable, match=r"no pg_hba\.conf entry"):
        use(open_client(f"postgresql://app:{QUOTED}@127.0.0.1:{secured_server.port}/postgres?sslmode=disable"))


def test_a_client_certificate_is_accepted(
    secured_server: Server, certificates: Certificates, open_client: OpenClient
) -> None:
    host = f"127.0.0.1:{secured_server.port}/postgres?sslmode=verify-full&sslrootcert={certificates.ca}"
    key = certificates.client_key
    key.chmod(0o600)

    use(open_client(f"postgresql://holdfast%20test%20client@{host}&sslcert={certificates.client}&sslkey={key}"))


def test_a_unix_socket_is_accepted(secured_server: Server, open_client: OpenClient) -> None:
    use(open_client(f"postgresql://app:{QUOTED}@/postgres?host={secured_server.folder}&port={secured_server.port}"))
