"""The complaints of ``test_documentation.py`` that are known, by rule. It may only shrink."""

KNOWN: dict[str, frozenset[str]] = {
    "references_lead_to_what_exists": frozenset(),
    "public_callables_name_their_errors": frozenset(
        {
            "mcp_transports.http.client.channel.HttpChannel.run RuntimeError",
            "mcp_transports.http.client.http.HttpResponse.chunks McpError",
            "mcp_transports.http.client.pool.HttpStream.read ReadError",
            "mcp_transports.http.client.pool.HttpStream.write WriteError",
            "mcp_transports.http.client.senders.ClientSender.send ConnectFailed",
            "mcp_transports.http.client.senders.ClientSender.send LocalProtocolError",
            "mcp_transports.http.client.server_streams.read_http_sse_stream RemoteProtocolError",
            "mcp_transports.stdio.streams.DescriptorReceiveStream.receive_some BrokenResourceError",
        }
    ),
    "sections_are_well_formed": frozenset(),
    "docstrings_are_no_questions": frozenset(
        {
            "mcp_transports.http.client.http.HttpRequester.url",
            "mcp_transports.http.client.senders",
            "mcp_transports.http.client.session_state",
            "mcp_transports.http.client.session_state.HttpClientOptions",
            "mcp_transports.http.client.sse_reader.StreamPosition",
            "mcp_transports.http.h1.errors",
            "mcp_transports.http.h1.field_rules",
            "mcp_transports.http.h1.limits",
            "mcp_transports.http.h1.server_state",
            "mcp_transports.http.server.error_responses",
            "mcp_transports.http.server.error_responses.Refusal",
            "mcp_transports.http.server.event_store.EventStore",
            "mcp_transports.http.server.event_store.EventStoreStatistics",
            "mcp_transports.http.server.media_types",
            "mcp_transports.http.server.origin_policy",
            "mcp_transports.http.server.origin_policy.Verdict",
            "mcp_transports.http.server.outlet",
            "mcp_transports.http.server.session_streams.CallStream",
            "mcp_transports.http.server.session_streams.StandaloneStream",
            "mcp_transports.http.server.session_streams.StreamOwner",
            "mcp_transports.http.server.session_streams.StreamSettings",
            "mcp_transports.http.server.sessions.HttpSession",
            "mcp_transports.http.server.sessions.SessionLimits",
            "mcp_transports.http.server.status_tables",
            "mcp_transports.http.sse.ServerSentEvent",
            "mcp_transports.http.sse.SseDecoder.failure",
            "mcp_transports.sockets.address.unix_url",
            "mcp_transports.websocket.keepalive",
            "mcp_transports.websocket.keepalive.KeepAliveAction",
            "mcp_transports.websocket.keepalive.KeepAliveTimes",
            "mcp_transports.websocket.keepalive.PeerActivity",
            "mcp_transports.websocket.protocol.WebSocketEvent",
            "mcp_transports.websocket.protocol.WebSocketState",
            "mcp_transports.websocket.server.WebSocketServerTransport.statistics",
        }
    ),
    "names_are_no_metaphors": frozenset(
        {
            "mcp_actors._actors.batch.Batch.settle",
            "mcp_actors._actors.connectionless.ConnectionlessSession.settled",
            "mcp_actors._actors.dispatcher.Carrier.settled",
            "mcp_actors._actors.link.Link.settle",
            "mcp_actors._actors.outbound.CallCarrier.settled",
            "mcp_actors._actors.session.Session.settled",
            "mcp_actors._actors.stateless.StatelessCalls.settled",
            "mcp_transports.http.server.outlet.StatelessOutlet.settle",
            "mcp_transports.http.server.session_streams.CallStream.settle",
            "mcp_transports.http.server.session_streams.SessionStream.settle",
            "mcp_transports.http.server.sessions._InitializeOutlet.settle",
            "mcp_transports.websocket.keepalive.PeerActivity.heard",
        }
    ),
    "class_names_are_used_once": frozenset(
        {
            "HttpSession",
        }
    ),
    "classes_hold_little": frozenset(
        {
            "mcp_actors._actors.link.Link",
            "mcp_actors._server.features.Features",
        }
    ),
    "comparisons_of_eras": frozenset(),
}
