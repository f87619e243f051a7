"""Hazard: a probe reports a process as the leader that has never led or does not lead any more."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import holdfast
from holdfast.asgi import health
from tests.support.asgi import Application


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


async def test_only_the_leader_answers_leader_with_200(url: str) -> None:
    async with holdfast.AsyncClient(url) as client, holdfast.AsyncClient(url) as other:
        election, rival = client.election("scheduler"), other.election("scheduler")
        async with Application(health(election)) as application, Application(health(rival)) as other_application:
            before = await application.request("/leader")
            async with election as lease:
                leading, following = await application.request("/leader"), await other_application.request("/leader")
            after = await application.request("/leader")

    assert (before.status, before.json) == (503, {"name": "scheduler", "leader": False, "fence": None})
    assert (leading.status, leading.json) == (200, {"name": "scheduler", "leader": True, "fence": lease.fence})
    assert following.status == after.status == 503
    assert leading.headers["content-type"] == "application/json"
    assert leading.headers["cache-control"] == "no-store"


async def test_a_leader_whose_lease_has_expired_answers_503(url: str) -> None:
    async with holdfast.AsyncClient(url) as client:
        election = client.election("scheduler", ttl=0.1, renew=False, on_lost="event")
        lease = await election.campaign()
        assert lease
        await lease.wait_lost()

        async with Application(health(election)) as application:
            response = await application.request("/leader")

    assert response.status == 503


async def test_work_of_run_counts_as_leading(url: str) -> None:
    async with holdfast.AsyncClient(url) as client:
        election = client.election("scheduler")
        leads = asyncio.Event()

        async def work(lease: holdfast.AsyncLease) -> None:
            leads.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(election.run(work))
        await leads.wait()
        async with Application(health(election)) as application:
            leading = await application.request("/leader")
            election.stop()
            await run
            stopped = await application.request("/leader")

    assert (leading.status, stopped.status) == (200, 503)


async def test_a_leader_in_a_thread_is_reported(url: str) -> None:
    leads, end = threading.Event(), threading.Event()

    def lead() -> None:
        with election:
            leads.set()
            end.wait(30)

    with holdfast.Client(url) as client:
        election = client.election("scheduler")
        thread = threading.Thread(target=lead)
        thread.start()
        leads.wait(30)
        async with Application(health(election)) as application:
            leading = await application.request("/leader")
            end.set()
            thread.join(30)
            ended = await application.request("/leader")

    assert (leading.status, ended.status) == (200, 503)


async def test_live_answers_200_without_leading_and_without_the_store() -> None:
    async with (
        holdfast.AsyncClient("etcd://127.0.0.1:1") as client,
        Application(health(client.election("scheduler"))) as application,
    ):
        live = await application.request("/live")

    assert live.status == 200
    assert live.json["leader"] is False


async def test_it_can_be_mounted_below_a_prefix(url: str) -> None:
    async with holdfast.AsyncClient(url) as client:
        election = client.election("scheduler")
        inner = Starlette(routes=[Mount("/health", health(election))])
        async with Application(Starlette(routes=[Mount("/internal", inner)])) as application, election:
            leading = await application.request("/internal/health/leader")
            unknown = await application.request("/internal/health/other")

    assert (leading.status, unknown.status) == (200, 404)


async def test_other_methods_are_refused_and_head_has_no_body(url: str) -> None:
    async with holdfast.AsyncClient(url) as client, Application(health(client.election("a"))) as application:
        head = await application.request("/live", method="HEAD")
        post = await application.request("/live", method="POST")

    assert (head.status, head.body) == (200, b"")
    assert (post.status, post.headers["allow"]) == (405, "GET, HEAD")
