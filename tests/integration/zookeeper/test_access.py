"""Names, ACLs and TLS: a name is exactly one lock, and only permitted users can use it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

import holdfast
from holdfast import BackendUnavailable, ConfigurationError
from tests.integration.conftest import OpenClient
from tests.support.processes import eventually
from tests.support.redis.certificates import Certificates
from tests.support.server_process import free_ports, running
from tests.support.zookeeper.servers import Server, kazoo


def test_a_name_with_slashes_is_one_node(url: str, server: Server, open_client: OpenClient) -> None:
    client, other = open_client(url), open_client(url)
    with client.lock("a/b"), other.lock("a", timeout=0), other.lock("b", timeout=0), kazoo(server.address) as observer:
        assert set(observer.get_children("/" + url.rpartition("/")[2])) >= {"a%2Fb", "a", "b"}


def test_raw_names_are_paths_and_separate_locks(url: str, server: Server, open_client: OpenClient) -> None:
    client, other = open_client(f"{url}?raw_names=yes"), open_client(f"{url}?raw_names=yes")
    root = "/" + url.rpartition("/")[2]
    with client.lock("a/b"), other.lock("a", timeout=0), kazoo(server.address) as observer:
        assert observer.exists(f"{root}/a/b") is not None
        with client.lock("a/b/c", timeout=0):
            assert [info.name for info in other.locks()] == ["a", "a/b", "a/b/c"]
        assert other.lock("a/b").acquire(timeout=0) is None

    for name in ("/a", "a/", "a//b", "a/../b", "zookeeper" if root == "/" else ".", "\0", "%sessions/x"):
        with pytest.raises(ConfigurationError, match="raw_names"):
            client.lock(name).acquire(timeout=0)


def test_nodes_with_acl_creator_are_closed_to_other_users(url: str, open_client: OpenClient) -> None:
    ours = url.replace("://", "://app:secret@") + "?acl=creator"
    owner, same_user, other_user = (open_client(url) for url in (ours, ours, ours.replace("app:secret", "eve:guess")))
    lease = owner.lock("a").acquire(timeout=0)
    assert lease is not None
    assert same_user.lock("a").acquire(timeout=0) is None

    with pytest.raises(ConfigurationError, match="may not use") as caught:
        other_user.lock("a").acquire(timeout=0)

    assert "guess" not in str(caught.value)
    lease.release()
    next_lease = same_user.lock("a").acquire(timeout=0)
    assert next_lease is not None
    next_lease.release()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a server that requires TLS and a client certificate."""
    folder = tmp_path_factory.mktemp("secure")
    (port,) = free_ports(1)
    certificate_and_key = folder / "server.pem"
    certificate_and_key.write_text(certificates.server.read_text() + certificates.server_key.read_text())
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": certificate_and_key,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": certificates.ca,
        "ssl.trustStore.type": "PEM",
    }
    with running(Server(folder / "server", settings=settings, jars=("netty-all", "netty-codec"))):
        eventually(lambda: _accepts(port))  # the server opens this port after the port that `running` waits for
        yield f"127.0.0.1:{port}"


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_tls_verifies_client_and_server(secure: str, certificates: Certificates, open_client: OpenClient) -> None:
    files = f"certfile={certificates.client}&keyfile={certificates.client_key}"

    with open_client(f"zookeeper://{secure}/locks?tls=yes&ca_certs={certificates.ca}&{files}").lock("a", timeout=10):
        pass
    with pytest.raises(BackendUnavailable):
        open_client(f"zookeeper://{secure}/locks?tls=yes&ca_certs={certificates.other_ca}&{files}").lock("a").acquire()
    with pytest.raises(BackendUnavailable):
        open_client(f"zookeeper://{secure}/locks?tls=yes&ca_certs={certificates.ca}").lock("a").acquire()
    with pytest.raises(ConfigurationError, match="ca_certs"):
        open_client(f"zookeeper://{secure}/locks?tls=yes&ca_certs=/nowhere").lock("a").acquire()


def test_the_certificates_of_a_kazoo_client_are_adopted(
    secure: str, certificates: Certificates, open_client: OpenClient
) -> None:
    files = {"certfile": str(certificates.client), "keyfile": str(certificates.client_key)}
    theirs = KazooClient(secure, use_ssl=True, ca=str(certificates.ca), **files)
    distrustful = KazooClient(secure, use_ssl=True, ca=str(certificates.other_ca), **files)

    with holdfast.Client(theirs) as client, client.lock("a", timeout=10):
        pass
    with holdfast.Client(distrustful) as client, pytest.raises(BackendUnavailable, match="certificate"):
        client.lock("a").acquire(timeout=0)


def test_a_password_is_never_shown(url: str, open_client: OpenClient, caplog: pytest.LogCaptureFixture) -> None:
    client = open_client(url.replace("://", "://app:hush-hush@"))
    with caplog.at_level(0), client.lock("a"):
        pass

    shown = caplog.text + repr(client) + client.url + repr(client._engine.backend.__dict__)
    assert "hush-hush" not in shown
