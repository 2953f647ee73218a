// A connection of either generation of the official TypeScript SDK, for the drivers here.
//
// "sdk" is @modelcontextprotocol/sdk, which speaks the legacy era only; "client" is its successor
// @modelcontextprotocol/client, which speaks both, but no WebSocket. The two packages differ in where things are and in
// how a handler is registered, and in nothing else here.

export function connectionOf(load, kind, mode, capabilities) {
    const info = { name: `official-typescript-${kind}`, version: '1.0.0' };
    if (kind === 'client') {
        const { Client, SSEClientTransport, StreamableHTTPClientTransport } = load('@modelcontextprotocol/client');
        const { StdioClientTransport } = load('@modelcontextprotocol/client/stdio');
        const client = new Client(info, { capabilities, versionNegotiation: { mode } });
        return {
            client,
            transports: { StdioClientTransport, StreamableHTTPClientTransport, SSEClientTransport },
            onRequest: (method, handler) => client.setRequestHandler(method, handler),
            onNotification: (method, handler) => client.setNotificationHandler(method, handler),
            callTool: (params, options) => client.callTool(params, options)
        };
    }
    const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
    const { StdioClientTransport } = load('@modelcontextprotocol/sdk/client/stdio.js');
    const { StreamableHTTPClientTransport } = load('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const { SSEClientTransport } = load('@modelcontextprotocol/sdk/client/sse.js');
    const { WebSocketClientTransport } = load('@modelcontextprotocol/sdk/client/websocket.js');
    const types = load('@modelcontextprotocol/sdk/types.js');
    const schemas = {
        'sampling/createMessage': types.CreateMessageRequestSchema,
        'elicitation/create': types.ElicitRequestSchema,
        'roots/list': types.ListRootsRequestSchema,
        'notifications/message': types.LoggingMessageNotificationSchema,
        'notifications/resources/updated': types.ResourceUpdatedNotificationSchema,
        'notifications/tools/list_changed': types.ToolListChangedNotificationSchema
    };
    const client = new Client(info, { capabilities });
    return {
        client,
        transports: {
            StdioClientTransport,
            StreamableHTTPClientTransport,
            SSEClientTransport,
            WebSocketClientTransport
        },
        onRequest: (method, handler) => client.setRequestHandler(schemas[method], handler),
        onNotification: (method, handler) => client.setNotificationHandler(schemas[method], handler),
        callTool: (params, options) => client.callTool(params, undefined, options)
    };
}
