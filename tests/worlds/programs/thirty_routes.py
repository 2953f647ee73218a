"""An application of FastAPI with thirty routes, called by both servers that can be made of it; prints what came out."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Annotated, Any

import trio
import uvicorn
from fastapi import (
    Cookie,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Path,
    Query,
    Request,
    UploadFile,
)
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import (
    APIKeyHeader,
    HTTPAuthorizationCredentials,
    HTTPBasic,
    HTTPBasicCredentials,
    HTTPBearer,
)
from pydantic import BaseModel

from mcp_actors import Client, Context, Server
from mcp_actors.openapi import SecurityScheme

opened: list[str] = []


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    opened.append("opened")
    app.state.pool = "the pool"
    yield
    opened.append("closed")


app = FastAPI(title="Thirty", lifespan=lifespan)
bearer, basic, key = HTTPBearer(), HTTPBasic(), APIKeyHeader(name="X-Key")


class Colour(StrEnum):
    red = "red"
    blue = "blue"


class Part(BaseModel):
    name: str
    size: int = 1


class Thing(BaseModel):
    name: str
    parts: list[Part] = []
    note: str | None = None


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


def user(found: Annotated[HTTPAuthorizationCredentials, Depends(bearer)]) -> str:
    if found.credentials != "ann-token":
        raise HTTPException(403, "not you")
    return "ann"


for number in range(10):

    @app.get(f"/plain/{number}", operation_id=f"plain_{number}")
    async def plain(n: int = number) -> dict[str, int]:
        return {"n": n}


@app.get("/path/{a}/{b}")
async def path(a: int, b: Annotated[str, Path(max_length=5)]) -> list[Any]:
    return [a, b]


@app.get("/query")
async def query(
    q: str, many: Annotated[list[int] | None, Query()] = None, on: bool = False
) -> dict[str, Any]:
    return {"q": q, "many": many, "on": on}


@app.get("/header")
async def header(x_tag: Annotated[str, Header()]) -> str:
    return x_tag


@app.get("/cookie")
async def cookie(sid: Annotated[str, Cookie()]) -> str:
    return sid


@app.get("/enum")
def enum(colour: Colour) -> Colour:
    return colour


@app.post("/things", status_code=201)
async def create(thing: Thing) -> Thing:
    return thing


@app.put("/things/{name}")
async def replace(name: str, thing: Thing) -> Thing:
    return Thing(name=name, parts=thing.parts)


@app.patch("/things/{name}")
async def change(name: str, note: Annotated[str, Query()]) -> dict[str, str]:
    return {name: note}


@app.delete("/things/{name}", status_code=204)
async def delete(name: str) -> None: ...


@app.post("/tree")
async def tree(tree: Tree) -> Tree:
    return tree


@app.post("/many")
async def many(things: list[Part]) -> int:
    return len(things)


@app.post("/form")
async def form(name: Annotated[str, Form()], age: Annotated[int, Form()]) -> dict[str, Any]:
    return {"name": name, "age": age}


@app.post("/upload")
async def upload(file: Annotated[UploadFile, File()], title: Annotated[str, Form()]) -> dict[str, Any]:
    return {"title": title, "name": file.filename, "size": len(await file.read())}


@app.get("/text", response_class=PlainTextResponse)
async def text() -> str:
    return "plain text"


@app.get("/image")
async def image() -> Response:
    return Response(b"\x89PNG", media_type="image/png")


@app.get("/bearer")
async def with_bearer(who: Annotated[str, Depends(user)]) -> str:
    return who


@app.get("/basic")
async def with_basic(who: Annotated[HTTPBasicCredentials, Depends(basic)]) -> str:
    return f"{who.username}/{who.password}"


@app.get("/key")
async def with_key(who: Annotated[str, Depends(key)]) -> str:
    return who


@app.get("/fails")
async def fails() -> None:
    raise HTTPException(409, "it is there already")


@app.get("/state")
async def state(request: Request) -> str:
    pool: str = getattr(request.app.state, "pool", "none")
    return pool


@app.get("/old", deprecated=True)
async def old() -> None: ...


THING = {"name": "bike", "parts": [{"name": "wheel", "size": 2}]}
TREE = {"value": 1, "children": [{"value": 2, "children": []}]}
CALLS: list[tuple[str, dict[str, Any]]] = [
    *((f"plain_{number}", {}) for number in range(10)),
    ("path_path__a___b__get", {"a": 1, "b": "x y"}),
    ("query_query_get", {"q": "a&b", "many": [1, 2], "on": True}),
    ("header_header_get", {"x-tag": "t"}),
    ("cookie_cookie_get", {"sid": "s"}),
    ("enum_enum_get", {"colour": "blue"}),
    ("create_things_post", THING),
    ("replace_things__name__put", {"name": "n", "name_body": "bike"}),
    ("change_things__name__patch", {"name": "n", "note": "x"}),
    ("delete_things__name__delete", {"name": "n"}),
    ("tree_tree_post", TREE),
    ("many_many_post", {"body": [{"name": "a"}, {"name": "b"}]}),
    ("form_form_post", {"name": "Ann", "age": 7}),
    ("upload_upload_post", {"title": "t", "file": {"text": "abc", "filename": "a.txt"}}),
    ("text_text_get", {}),
    ("image_image_get", {}),
    ("with_bearer_bearer_get", {}),
    ("with_basic_basic_get", {}),
    ("with_key_key_get", {}),
    ("fails_fails_get", {}),
    ("state_state_get", {}),
]


def credentials(ctx: Context, scheme: SecurityScheme) -> str:
    return {"bearer": "ann-token", "basic": "ann:secret", "apiKey": "k"}[scheme.kind]


async def answers(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with Client(server, timeout=120, cap=600) as client:
        listed = {tool.name async for tool in client.tools()}
        for name, arguments in CALLS:
            name = "_".join(each for each in name.split("_") if each)
            result = await client.call_tool(name, arguments)
            shown = (
                result.data if result.data is not None else [type(each).__name__ for each in result.content]
            )
            found[name] = result.text if result.is_error else shown
    assert listed == set(found), listed ^ set(found)
    return found


async def main() -> None:
    in_process = await answers(Server.from_asgi(app, credentials=credentials))
    # The application needs asyncio and the client Trio: so it is called at a socket.
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="on")
    web = uvicorn.Server(config)
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    with trio.fail_after(60):
        while not web.started:  # noqa: ASYNC110
            await trio.sleep(0.01)
    port = web.servers[0].sockets[0].getsockname()[1]
    server = Server.from_openapi(f"http://127.0.0.1:{port}/openapi.json", credentials=credentials)
    over_a_socket = await answers(server)
    web.should_exit = True
    await trio.to_thread.run_sync(thread.join)
    print(json.dumps({"in process": in_process, "over a socket": over_a_socket, "lifespans": opened}))


if __name__ == "__main__":
    trio.run(main)
