"""zookeeper:// URLs are parsed completely, and an error names the wrong part and the fix."""

from __future__ import annotations

from holdfast.backends.zookeeper.config import Access, ZookeeperConfig, config_of
from holdfast.url import parse


def place(url: str) -> ZookeeperConfig:
    return config_of(parse(url))


def test_config_of_has_defaults_for_a_plain_url() -> None:
    found = place("zookeeper://one")

    assert (found.hosts, found.root, found.layout, found.raw_names) == ("one:2181", "/holdfast", "curator", False)
    assert (found.session_timeout, found.login, found.tls) == (None, None, None)
    assert found.acl == (Access(31, "world", "anyone"),)


def test_config_of_parses_all_parts_of_a_url() -> None:
    found = place(
        "zookeeper://app:p%40ss@one,two:2182,[::1]:2183/a/b?layout=kazoo&raw_names=yes&session_timeout=6"
        "&acl=read&tls=yes&ca_certs=/ca.pem&certfile=/c.pem&keyfile=/k.pem&verify=no"
    )

    assert found.hosts == "one:2181,two:2182,[::1]:2183"
    assert (found.root, found.layout, found.raw_names, found.session_timeout) == ("/a/b", "kazoo", True, 6.0)
    assert found.login == "app:p@ss"
    assert found.acl == (Access(31, "auth", ""), Access(1, "world", "anyone"))
    assert found.tls is not None
    assert (found.tls.ca_certs, found.tls.verify) == ("/ca.pem", False)
    assert "p@ss" not in repr(found)
    assert "p%40ss" not in repr(found)


def test_the_path_can_be_the_root() -> None:
    assert place("zookeeper://one/").root == ""


def test_an_acl_can_be_a_list_of_entries() -> None:
    assert place("zookeeper://one?acl=world:anyone:rc,ip:10.0.0.1:cdrwa").acl == (
        Access(5, "world", "anyone"),
        Access(31, "ip", "10.0.0.1"),
    )
