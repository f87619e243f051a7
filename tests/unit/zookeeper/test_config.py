"""zookeeper:// URLs are parsed completely, and an error names the wrong part and the fix."""

from __future__ import annotations

from holdfast.backends.zookeeper.config import Access, ZookeeperConfig, config_of
from holdfast.url import parse


def config_from(url: str) -> ZookeeperConfig:
    return config_of(parse(url))


def test_config_of_has_defaults_for_a_plain_url() -> None:
    config = config_from("zookeeper://one")

    assert (config.hosts, config.root, config.layout, config.raw_names) == ("one:2181", "/holdfast", "curator", False)
    assert (config.session_timeout, config.user, config.tls) == (None, "", None)
    assert config.acl == (Access(31, "world", "anyone"),)


def test_config_of_parses_all_parts_of_a_url() -> None:
    config = config_from(
        "zookeeper://app:p%40ss@one,two:2182,[::1]:2183/a/b?layout=kazoo&raw_names=yes&session_timeout=6"
        "&acl=read&tls=yes&verify=no"
    )

    assert config.hosts == "one:2181,two:2182,[::1]:2183"
    assert (config.root, config.layout, config.raw_names, config.session_timeout) == ("/a/b", "kazoo", True, 6.0)
    assert (config.user, config.password) == ("app", "p@ss")
    assert config.acl == (Access(31, "auth", ""), Access(1, "world", "anyone"))
    assert config.tls is not None
    assert config.tls["verify"] == "no"
    assert "p@ss" not in repr(config)
    assert "p%40ss" not in repr(config)


def test_the_path_can_be_the_root() -> None:
    assert config_from("zookeeper://one/").root == ""


def test_an_acl_can_be_a_list_of_entries() -> None:
    assert config_from("zookeeper://one?acl=world:anyone:rc,ip:10.0.0.1:cdrwa").acl == (
        Access(5, "world", "anyone"),
        Access(31, "ip", "10.0.0.1"),
    )
