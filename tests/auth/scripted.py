"""Authorization servers, MCP servers and a person in memory, for state machines that yield effects.

A `World` answers the effects of a machine in a loop of a few lines, keeps everything that was sent, and knows every
secret that was ever made in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlsplit

from mcp_actors.auth import MemoryTokenStore, OAuth
from mcp_actors.auth.client.authorization import Answered, Authorization, SentRequest
from mcp_actors.auth.effects import (
    Ask,
    Effect,
    Fetch,
    Fetched,
    FetchFailed,
    LoadRecord,
    Lock,
    LogIn,
    OpenRedirect,
    RedirectAnswer,
    Steps,
    SwapRecord,
    Unlock,
)
from mcp_actors.auth.urls import origin

T = TypeVar("T")

SERVER = "https://rs.example/mcp"
ISSUER = "https://as.example"
REDIRECT = "http://127.0.0.1:43117/callback"
WELL_KNOWN_RESOURCE = "/.well-known/oauth-protected-resource"
WELL_KNOWN_SERVER = "/.well-known/oauth-authorization-server"

Handler = Callable[[Fetch], Fetched | FetchFailed]


def answer(document: Any, status: int = 200, **headers: str) -> Fetched:
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Fetched(status, [("content-type", "application/json"), *named], json.dumps(document).encode())


NOT_FOUND = Fetched(404, [("content-type", "text/html")], b"<html>not found</html>")


def claims_of(jwt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims of a JWT whose signature nobody checks here."""
    header, claims, _ = jwt.split(".")
    first, second = (json.loads(base64.urlsafe_b64decode(each + "==")) for each in (header, claims))
    return first, second


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waited")


class World:
    """Everything outside of a machine."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.store = MemoryTokenStore()
        self.handlers: dict[str, Handler] = {}
        self.fetches: list[Fetch] = []
        self.logins: list[str] = []
        self.effects: list[Effect] = []
        self.secrets: set[str] = set()
        self.redirects = [REDIRECT]
        self.locked: set[str] = set()
        self.person: Callable[[LogIn], RedirectAnswer] = self._log_in
        self.before: Callable[[Effect], None] = lambda effect: None
        self._count = 0

    def secret(self, kind: str) -> str:
        self._count += 1
        made = f"SECRET-{kind}-{self._count}-and-as-long-as-real-ones"
        self.secrets.add(made)
        return made

    def run(self, steps: Steps[T]) -> T:
        """Runs a machine to its end. What it leaves locked is unlocked, as a driver does."""
        reply: Any = None
        failure: BaseException | None = None
        try:
            while True:
                effect = steps.send(reply) if failure is None else steps.throw(failure)
                reply = failure = None
                self.effects.append(effect)
                try:
                    self.before(effect)
                    reply = self._perform(effect)
                except Exception as error:
                    failure = error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self.locked.clear()

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Fetch():
                return self._fetch(effect)
            case LoadRecord(key):
                return finished(self.store.load(key))
            case SwapRecord(key, expected, value):
                # What a file would do to it.
                written = None if value is None else json.loads(json.dumps(value))
                return finished(self.store.swap(key, expected, written))
            case Lock(key):
                assert key not in self.locked
                self.locked.add(key)
            case Unlock(key):
                self.locked.remove(key)
            case OpenRedirect(registered):
                return next((each for each in self.redirects if each in registered), self.redirects[0])
            case LogIn():
                assert not self.locked, "a lock is held round a login"
                self.logins.append(effect.url)
                query = dict(parse_qsl(urlsplit(effect.url).query))
                self.secrets.add(query["state"])
                return self.person(effect)
            case Ask(function, arguments):
                return function(*arguments)
        return None

    def _fetch(self, fetch: Fetch) -> Fetched | FetchFailed:
        self.fetches.append(fetch)
        body = dict(parse_qsl((fetch.body or b"").decode()))
        names = ("code_verifier", "client_assertion")
        self.secrets.update(body[name] for name in names if name in body)
        self.secrets.update(value for name, value in fetch.headers if name == "dpop")
        self.secrets.update(value for name, value in fetch.headers if name == "authorization")
        handler = self.handlers.get(origin(fetch.url))
        return FetchFailed("nobody is there") if handler is None else handler(fetch)

    def _log_in(self, effect: LogIn) -> RedirectAnswer:
        """The person agrees to everything."""
        handler = self.handlers[origin(effect.url)]
        response = handler(Fetch("GET", effect.url))
        assert isinstance(response, Fetched)
        location = response.header("location")
        assert location is not None, response.body
        found = parse_qsl(urlsplit(location).query)
        assert effect.accepts(found)
        return found

    def sent_to(self, base: str) -> str:
        """Everything that was ever sent to an origin, logins included, as one text."""
        sent = [each for each in self.fetches if origin(each.url) == base]
        texts = [f"{each.url} {each.headers} {(each.body or b'').decode()}" for each in sent]
        return unquote_plus("\n".join([*texts, *(each for each in self.logins if origin(each) == base)]))

    def posts(self, url: str) -> list[dict[str, str]]:
        """The forms, or JSON objects as they came, that were posted to a URL."""
        bodies = [
            (each.body or b"").decode() for each in self.fetches if (each.method, each.url) == ("POST", url)
        ]
        return [json.loads(each) if each.startswith("{") else dict(parse_qsl(each)) for each in bodies]

    def authorization_requests(self) -> list[dict[str, str]]:
        """The parameters of the logins, each of which must be there once."""
        found = [parse_qs(urlsplit(each).query, keep_blank_values=True) for each in self.logins]
        assert all(len(values) == 1 for query in found for values in query.values())
        return [{name: values[0] for name, values in query.items()} for query in found]


class AuthServer:
    """An authorization server: its metadata can be overridden, and so can each of its answers.

    Args:
        world: Where it is.
        issuer: Its issuer, verbatim.
        metadata: Members of its metadata; ``None`` leaves one out.
        places: Paths at which its metadata is.
    """

    def __init__(
        self,
        world: World,
        issuer: str = ISSUER,
        *,
        places: Sequence[str] = (WELL_KNOWN_SERVER,),
        prefix: str = "",
        **metadata: Any,
    ) -> None:
        self.world = world
        self.issuer = issuer
        self.base = origin(issuer) + prefix
        self.places = places
        document = {
            "issuer": issuer,
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
            "registration_endpoint": f"{self.base}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": ["none"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **metadata,
        }
        self.metadata = {name: value for name, value in document.items() if value is not None}
        self.answer_iss: str | None = issuer
        self.clients: dict[str, dict[str, Any]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        # Access tokens that are good, with their scopes and the thumbprint of their key.
        self.tokens: dict[str, dict[str, Any]] = {}
        self.refresh_tokens: dict[str, dict[str, Any]] = {}
        self.gives_refresh = False
        self.expires_in: Any = 3600
        self.nonce: str | None = None
        self.token_type: str | None = None
        self.next: list[Fetched | FetchFailed] = []
        world.handlers[origin(issuer)] = self.handle

    def handle(self, fetch: Fetch) -> Fetched | FetchFailed:
        parts = urlsplit(fetch.url)
        if fetch.method == "GET" and parts.path in self.places:
            return answer(self.metadata)
        endpoint = parts.path.rpartition("/")[2]
        if fetch.url.partition("?")[0] != f"{self.base}/{endpoint}":
            return NOT_FOUND
        if endpoint == "authorize":
            return self.authorize(dict(parse_qsl(parts.query)))
        if endpoint == "register":
            return self.register(json.loads(fetch.body or b""))
        if endpoint == "token":
            return self.next.pop(0) if self.next else self.token(fetch)
        if endpoint == "revoke":
            self.refresh_tokens.pop(dict(parse_qsl((fetch.body or b"").decode()))["token"], None)
            return answer({})
        return NOT_FOUND

    def authorize(self, query: dict[str, str]) -> Fetched:
        code = self.world.secret("code")
        self.codes[code] = query
        iss = "" if self.answer_iss is None else f"&iss={self.answer_iss}"
        location = f"{query['redirect_uri']}?code={code}&state={query['state']}{iss}"
        return Fetched(302, [("location", location)], b"")

    def register(self, document: dict[str, Any]) -> Fetched:
        client = {
            **document,
            "client_id": f"{urlsplit(self.issuer).hostname}-client-{len(self.clients) + 1}",
            "client_secret": self.world.secret("client"),
        }
        self.clients[client["client_id"]] = client
        return answer(client, 201)

    def token(self, fetch: Fetch) -> Fetched:
        form = dict(parse_qsl((fetch.body or b"").decode()))
        proof = next((value for name, value in fetch.headers if name == "dpop"), None)
        bound = None
        if proof is not None:
            header, claims = claims_of(proof)
            assert (claims["htm"], claims["htu"]) == ("POST", fetch.url)
            assert "ath" not in claims
            bound = header["jwk"]
            if self.nonce is not None and claims.get("nonce") != self.nonce:
                return answer({"error": "use_dpop_nonce"}, 400, dpop_nonce=self.nonce)
        scope = form.get("scope", "")
        if form["grant_type"] == "authorization_code":
            query = self.codes.pop(form["code"], None)
            if query is None:
                return answer({"error": "invalid_grant"}, 400)
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == query["code_challenge"]
            assert (form["redirect_uri"], form["resource"]) == (query["redirect_uri"], query["resource"])
            scope = query.get("scope", "")
        elif form["grant_type"] == "refresh_token":
            grant = self.refresh_tokens.pop(form["refresh_token"], None)
            if grant is None or grant["bound"] != bound:
                return answer({"error": "invalid_grant"}, 400)
            scope = grant["scope"]
        return self.issue(scope, bound)

    def issue(self, scope: str, bound: Any = None) -> Fetched:
        token = self.world.secret("access")
        self.tokens[token] = {"scope": scope.split(), "bound": bound}
        document = {"access_token": token, "token_type": self.token_type or ("DPoP" if bound else "Bearer")}
        if self.expires_in is not None:
            document["expires_in"] = self.expires_in
        if scope:
            document["scope"] = scope
        if self.gives_refresh:
            refresh = self.world.secret("refresh")
            self.refresh_tokens[refresh] = {"scope": scope, "bound": bound}
            document["refresh_token"] = refresh
        return answer(document)


class ProtectedServer:
    """An MCP server that trusts one authorization server.

    Args:
        world: Where it is.
        auth: Its authorization server.
        url: Its URL.
        document: Its metadata; by default what is right, ``None`` for none.
        places: Paths at which that is.
        hint: The ``resource_metadata`` of its challenges; by default the first place.
    """

    def __init__(
        self,
        world: World,
        auth: AuthServer | None,
        url: str = SERVER,
        *,
        document: dict[str, Any] | None = None,
        places: Sequence[str] = (f"{WELL_KNOWN_RESOURCE}/mcp",),
        is_hinted: bool = True,
    ) -> None:
        self.world = world
        self.auth = auth
        self.url = url
        self.document = document or {
            "resource": url,
            "authorization_servers": [] if auth is None else [auth.issuer],
        }
        self.places = places
        self.hint = f"{origin(url)}{places[0]}" if places and is_hinted else None
        self.scope: str | None = None
        self.scheme = "Bearer"
        self.nonce: str | None = None
        # By operation: the scopes that it takes.
        self.needed: dict[str, str] = {}
        self.tokens: list[str | None] = []
        self.proofs: list[dict[str, Any]] = []
        self.refuses: Callable[[str], Answered | None] = lambda operation: None
        base = origin(url)
        before = world.handlers.get(base)
        world.handlers[base] = self.handle if before is None else lambda fetch: self._either(fetch, before)

    def _either(self, fetch: Fetch, other: Handler) -> Fetched | FetchFailed:
        return self.handle(fetch) if urlsplit(fetch.url).path in self.places else other(fetch)

    def handle(self, fetch: Fetch) -> Fetched:
        assert not any(name == "authorization" for name, _ in fetch.headers)
        return answer(self.document) if urlsplit(fetch.url).path in self.places else NOT_FOUND

    def challenge(self, **params: str | None) -> list[str]:
        every = {"resource_metadata": self.hint, "scope": self.scope, **params}
        said = ", ".join(f'{name}="{value}"' for name, value in every.items() if value is not None)
        return [f"{self.scheme} {said}".rstrip()]

    def request(self, headers: dict[str, str], operation: str) -> Answered:
        """The answer to a request; 200 if it is carried out."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        self.tokens.append(token or None)
        special = self.refuses(operation)
        if special is not None:
            return special
        known = None if self.auth is None else self.auth.tokens.get(token)
        if known is None:
            return Answered(401, self.challenge(error="invalid_token" if token else None))
        if known["bound"] is not None:
            assert scheme == "DPoP"
            header, claims = claims_of(headers["dpop"])
            assert header["jwk"] == known["bound"]
            assert claims["ath"] == base64.urlsafe_b64encode(
                hashlib.sha256(token.encode()).digest()
            ).decode().rstrip("=")
            assert claims["jti"] not in {each["jti"] for each in self.proofs}
            self.proofs.append(claims)
            if self.nonce is not None and claims.get("nonce") != self.nonce:
                return Answered(401, [self.scheme + ' error="use_dpop_nonce"'], self.nonce)
        else:
            assert scheme == "Bearer"
        missing = set(self.needed.get(operation, "").split()) - set(known["scope"])
        if missing:
            return Answered(403, self.challenge(scope=self.needed[operation], error="insufficient_scope"))
        return Answered(200)


class Caller:
    """A client as a driver makes it: restores once, renews when it is due, sends again as often as it is told."""

    def __init__(self, world: World, settings: OAuth, server: ProtectedServer) -> None:
        self.world = world
        self.server = server
        self.machine = Authorization(
            settings, server.url, protocol_version="2025-11-25", now=lambda: world.now
        )
        world.run(self.machine.restore())

    def call(self, operation: str = "tools/list") -> int:
        """The status that the program is given."""
        machine, url = self.machine, self.server.url
        if machine.refresh_due:
            self.world.run(machine.renew())
        sent: SentRequest | None = None
        for _ in range(20):
            headers = dict(machine.headers("POST", url))
            self.world.secrets.update(headers.values())
            if sent is None:
                sent = SentRequest("POST", url, operation, machine.token)
            else:
                sent.sent_again(machine.token)
            found = self.server.request(headers, operation)
            machine.note(url, found.nonce)
            if found.status < 300:
                machine.succeeded(operation)
                return found.status
            if not machine.sends_again(sent, found) and not self.world.run(machine.react(sent, found)):
                return found.status
        raise AssertionError("it never ends")


def scene(
    settings: OAuth | None = None, **metadata: Any
) -> tuple[World, AuthServer, ProtectedServer, Caller]:
    """A world with one authorization server, one server that trusts it, and a client."""
    world = World()
    auth = AuthServer(world, **metadata)
    server = ProtectedServer(world, auth)
    settings = settings or OAuth()
    return world, auth, server, Caller(world, settings, server)
