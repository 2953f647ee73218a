"""What a failure costs: one request, one stream or one session, and never a task that serves others as well."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Context
from mcp_actors.abc import Outlet, Replay
from mcp_actors.shared import MemoryEventLog
from mcp_transports.http.h1.request import Request
from tests.transports.http.fakes import FakeListener, FakeSession, answer, notification, request, resume
from tests.transports.http.raw import eventually
from tests.transports.http.site import BATCHING, Site, call, message_of, modern, site, text

pytestmark = pytest.mark.usefixtures("logs")
Logs = list[MutableMapping[str, Any]]


class Rude(BaseException):
    """What no ``except Exception`` catches."""


ERRORS = [RuntimeError("disk full"), SystemExit(3), Rude(), BaseExceptionGroup("two", [Rude(), ValueError()])]


class FailingStore(MemoryEventLog):
    """A store of a user's that fails in one method for some sessions; ``fails`` says which."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()
        self.fails: Callable[[str], bool] = lambda session: False
        self.failures = 0
        self._method = method
        self._error = error

    def _try(self, method: str, session: str) -> None:
        if method == self._method and self.fails(session):
            self.failures += 1
            raise self._error

    def append(self, session: str, stream: str, data: bytes) -> str:
        self._try("append", session)
        return super().append(session, stream, data)

    async def after(self, session: str, event_id: str) -> Replay | None:
        self._try("after", session)
        return await super().after(session, event_id)

    def end(self, session: str, stream: str) -> None:
        self._try("end", session)
        super().end(session, stream)

    def forget(self, session: str) -> None:
        self._try("forget", session)
        super().forget(session)


def post(outlet: Outlet, frame: Any) -> bool:
    """Whether a frame was taken. What an outlet may raise, beside nothing, is one of Trio's endings."""
    try:
        outlet.post(frame)
    except trio.BrokenResourceError:
        return False
    return True


# -- an event log that raises ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_event_that_cannot_be_kept_ends_its_session_alone(error: BaseException, logs: Logs) -> None:
    store = FailingStore("append", error)
    listener = FakeListener(store=store)
    opened = [listener.open() for _ in range(10)]
    calls = [[listener.post(request(number), session) for number in range(10)] for session, _ in opened]
    listening = [listener.get(session) for session, _ in opened]
    for _, engine in opened:
        for number in range(5):
            assert post(engine.outlet_of(number), notification(str(number)))

    failing, engine = opened[3]
    store.fails = lambda session: session == failing
    assert not post(engine.outlet_of(2), notification("kept nowhere"))
    assert [(each["log_level"], each["costs"]) for each in logs] == [("error", "session")]
    assert engine.closed
    # Whoever waits for an answer gets one, and nobody takes what came of a stream for all of it.
    assert [each.status for each in calls[3]] == [200] * 5 + [500] * 5
    assert [each.json["error"]["code"] for each in calls[3][5:]] == [-32603] * 5
    assert all(each.aborted for each in calls[3][:5])
    assert listening[3].aborted
    assert listener.post(request(99), failing).status == 404
    # Its calls unwind: what they still have to say goes nowhere.
    for number in range(10):
        post(engine.outlet_of(number), answer(number))
    assert store.failures == 1

    for (session, each), responses in zip(opened, calls, strict=True):
        if session != failing:
            for number in range(10):
                each.outlet_of(number).post(answer(number))
            assert all(response.ended and response.status == 200 for response in responses)
    assert listener.table.statistics().open == 9
    assert len(listener.open_streams) == 9


@pytest.mark.parametrize("id", [None, 7, "two\nlines", b"bytes"])
async def test_an_event_id_that_is_none_ends_its_session_alone(id: Any) -> None:
    class Mistaken(MemoryEventLog):
        def append(self, session: str, stream: str, data: bytes) -> str:
            return id  # type: ignore[no-any-return]

    listener = FakeListener(store=Mistaken())
    session, engine = listener.open()
    response = listener.post(request(1), session)
    assert not post(engine.outlet_of(1), notification())
    assert response.status == 500
    assert listener.post(request(2), session).status == 404


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_stream_that_cannot_begin_is_500(error: BaseException) -> None:
    store = FailingStore("append", error)
    listener = FakeListener(store=store)
    session, engine = listener.open()
    store.fails = lambda session: True
    assert listener.get(session).status == 500
    assert engine.closed
    assert listener.get(session).status == 404


@pytest.mark.parametrize("method", ["end", "forget"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_store_that_cannot_give_back_costs_nobody_anything(method: str, error: BaseException) -> None:
    store = FailingStore(method, error)
    store.fails = lambda session: True
    listener = FakeListener(store=store)
    opened = [listener.open() for _ in range(10)]
    for session, engine in opened:
        response = listener.post(request(1), session)
        engine.outlet_of(1).post(notification())
        engine.outlet_of(1).post(answer(1))
        assert response.messages[-1]["result"] == "done"
        assert listener.get(session).status == 200
        assert listener.delete(session).status == 200
        assert engine.closed
    assert store.failures == 10
    assert listener.table.statistics().open == len(listener.open_streams) == 0


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_store_that_cannot_tell_what_was_missed_costs_one_request(
    nursery: trio.Nursery, error: BaseException
) -> None:
    store = FailingStore("after", error)
    listener = FakeListener(nursery, store=store)
    session, engine = listener.open()
    response = listener.post(request(1), session)
    engine.outlet_of(1).post(notification())
    store.fails = lambda session: True
    for _ in range(10):
        failed = await resume(listener, session, response.ids[0])
        assert (failed.status, failed.json["error"]["code"]) == (500, -32603)
    store.fails = lambda session: False
    again = await resume(listener, session, response.ids[0])
    assert again.status == 200
    engine.outlet_of(1).post(answer(1))
    assert again.messages[-1]["result"] == "done"


# -- who is there -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    "error", [*ERRORS, trio.BrokenResourceError()], ids=lambda error: type(error).__name__
)
async def test_what_authentication_raises_costs_one_request(
    nursery: trio.Nursery, waits: bool, error: BaseException, logs: Logs
) -> None:
    def authenticate(request: Request) -> Any:
        broken = "authorization" in request.headers
        if waits:
            return answered(broken)
        if broken:
            raise error
        return "ann"

    async def answered(broken: bool) -> str:
        await trio.lowlevel.checkpoint()
        if broken:
            raise error
        return "ann"

    listener = FakeListener(nursery, authenticate=authenticate)
    for method in ("POST", "GET", "DELETE") * 10:
        failed = listener.send(method, headers={"authorization": "any"})
        await trio.testing.wait_all_tasks_blocked()
        assert (failed.status, failed.json["error"]["code"]) == (500, -32603)
        assert b"disk" not in failed.body
    assert [(each["log_level"], each["costs"]) for each in logs] == [("error", "call")] * 30
    opened = listener.post(request(1, "initialize"))
    await trio.testing.wait_all_tasks_blocked()
    assert opened.status == 200


async def test_a_keyboard_interrupt_belongs_to_the_program() -> None:
    def authenticate(request: Request) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FakeListener(authenticate=authenticate).post(request(1))


# -- tasks that serve many --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_stream_that_cannot_be_kept_alive_is_cut_off_alone(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, error: BaseException
) -> None:
    listener = FakeListener(nursery, keepalive=10, max_sessions=100)
    nursery.start_soon(listener.open_streams.keep_alive)
    streams = [listener.get(listener.open()[0]) for _ in range(100)]

    def write(data: bytes) -> None:
        raise error

    for broken in streams[::10]:
        broken.write = write  # type: ignore[method-assign]
    await trio.sleep(31)
    assert [each.aborted for each in streams] == [number % 10 == 0 for number in range(100)]
    assert all(b":\n\n" in each.chunks for each in streams if not each.aborted)
    assert len(listener.open_streams) == 90


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_session_that_cannot_be_closed_expires_alone(
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = FakeListener(nursery, idle=100, max_sessions=100)
    nursery.start_soon(listener.table.expire)
    opened = [listener.open() for _ in range(100)]
    streams = [listener.get(session) for session, _ in opened]

    def close() -> None:
        raise error

    for _, engine in opened[::10]:
        engine.close = close  # type: ignore[method-assign]
    for stream in streams:
        stream.leave()
    await trio.sleep(201)
    assert listener.table.statistics().open == 0
    assert [engine.closed for _, engine in opened] == [number % 10 != 0 for number in range(100)]
    _, engine = listener.open()
    await trio.sleep(201)
    assert engine.closed


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_when_the_server_stops_every_session_ends_whatever_one_of_them_raises(
    error: BaseException,
) -> None:
    listener = FakeListener(max_sessions=100)
    opened = [listener.open() for _ in range(100)]
    streams = [listener.get(session) for session, _ in opened]

    def fail(*args: object) -> None:
        raise error

    for number, (_, engine) in enumerate(opened):
        if number % 10 == 0:
            engine.close = fail  # type: ignore[method-assign]
            streams[number].end = fail  # type: ignore[method-assign]
    listener.endpoint.stop()
    listener.endpoint.close()
    assert all(each.ended for each in streams)
    assert [each.aborted for each in streams] == [number % 10 == 0 for number in range(100)]
    assert listener.table.statistics().open == 0


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_message_that_a_session_chokes_on_ends_it_alone(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = FakeListener(max_sessions=11)
    opened = [listener.open() for _ in range(10)]

    def deliver(self: FakeSession, arrival: Any, outlet: Outlet) -> None:
        raise error

    monkeypatch.setattr(FakeSession, "deliver", deliver)
    assert listener.post(request(1, "initialize")).status == 500
    for number, (session, engine) in enumerate(opened):
        failed = listener.post(request(1), session)
        assert (failed.status, failed.json["error"]["code"]) == (500, -32603)
        assert engine.closed
        assert listener.post(request(1), session).status == 404
        assert listener.table.statistics().open == 9 - number


# -- a whole server ---------------------------------------------------------------------------------------------------


async def answers(at: Site) -> bool:
    """Whether a server that was attacked still serves both eras to a client that is new."""
    message, headers = modern(1, "add", a=1, b=2)
    assert text((await at.post(message, **headers)).json()) == "3"
    session = await at.open()
    assert text((await at.post(call(1, "add", a=2, b=2), session)).json()) == "4"
    return True


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_server_outlives_a_store_that_raises(error: BaseException) -> None:
    store = FailingStore("append", error)
    async with site(event_log=store) as at:
        bystander = await at.open()
        async with at.stream("POST", call(1, "wait"), bystander) as events:
            await message_of(events)
            store.fails = lambda session: session != bystander
            for _ in range(10):
                session = await at.open()
                for number in range(10):
                    response = await at.post(call(number, "wait"), session)
                    assert response.status_code == (500 if number == 0 else 404)
            assert store.failures == 10
            await eventually(lambda: at.transport.statistics().sessions.open == 1)  # type: ignore[union-attr]
            at.go.set()
            await message_of(events)
            assert text(await message_of(events)) == "waited"
        store.fails = lambda session: False
        assert await answers(at)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_server_outlives_what_authentication_raises(error: BaseException) -> None:
    def authenticate(request: Request) -> str | None:
        if "authorization" in request.headers:
            raise error
        return None

    async with site(authenticate=authenticate) as at:
        for _ in range(20):
            failed = await at.post(call(1, "add", a=1, b=2), authorization="any")
            assert failed.status_code == 500
        assert await answers(at)


async def test_a_server_outlives_uris_that_are_too_long_to_be_told_of() -> None:
    """Each is longer than what is sent to a client, so that the change of it cannot be told."""
    async with site(max_message_bytes=100_000) as at:

        @at.server.resource("file:///{+path}")
        async def read(path: str) -> str:
            return path

        @at.server.tool
        async def change(ctx: Context, uri: str) -> str:
            at.server.resource_updated(uri)
            return "changed"

        sessions = [await at.open() for _ in range(10)]
        for number, session in enumerate(sessions):
            uri = f"file:///{number}" + "x" * 99_980
            params = {"uri": uri}
            subscribe = {"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": params}
            await at.post(subscribe, session)
            at.server.resource_updated(uri)
            at.server.resource_updated(uri + "/below")
            await trio.testing.wait_all_tasks_blocked()
        assert await answers(at)


async def test_a_server_without_sessions_outlives_batches_of_ids_that_are_too_long() -> None:
    """A refusal repeats its request's id, so none of these can be sent."""
    async with site(sessions=False, max_message_bytes=4_000) as at:
        batch = [
            {"jsonrpc": "2.0", "id": f"{number:04}" + "x" * 4_000, "method": "no/such"}
            for number in range(1000)
        ]
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(_post_and_forget, at, batch)
        message, headers = modern(1, "add", a=1, b=2)
        assert text((await at.post(message, **headers)).json()) == "3"


async def _post_and_forget(at: Site, batch: list[Any]) -> None:
    with suppress(trio.TooSlowError):
        with trio.fail_after(1):
            await at.post(batch, **{"mcp-protocol-version": BATCHING})
