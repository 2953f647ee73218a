// A host for pages of tools (SEP-1865), made of the official AppBridge and client, for a real browser.
//
// Usage: apps_host.mjs MODULES
//
// MODULES is a directory with a node_modules folder. It prints the URL of the host's page. That is opened with ?server=URL,
// &tool=NAME, &input=JSON and &mode=legacy|auto: it calls the tool, and shows the result on its page. The page runs in a
// frame of another origin inside of a frame of another origin, which has the Content-Security-Policy that the page asks
// for, as the extension wants it. What happened is in window.happened.

import { createRequire } from 'node:module';
import { createServer } from 'node:http';
import { join } from 'node:path';

const modules = process.argv[2];
const load = createRequire(join(modules, 'package.json'));

const HOST = `
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import {
    AppBridge, PostMessageTransport, RESOURCE_MIME_TYPE, buildAllowAttribute, getToolUiResourceUri, isToolVisibilityAppOnly,
} from '@modelcontextprotocol/ext-apps/app-bridge';

const asked = new URLSearchParams(location.search);
const happened = (window.happened = { tools: [], appOnly: [], calls: [], sizes: [], contexts: [] });

async function show() {
    const capabilities = { extensions: { 'io.modelcontextprotocol/ui': { mimeTypes: [RESOURCE_MIME_TYPE] } } };
    const client = new Client(
        { name: 'official-host', version: '1.0.0' },
        { capabilities, versionNegotiation: { mode: asked.get('mode') } },
    );
    await client.connect(new StreamableHTTPClientTransport(new URL(asked.get('server'))));
    const { tools } = await client.listTools();
    happened.tools = tools.map((tool) => tool.name);
    happened.appOnly = tools.filter(isToolVisibilityAppOnly).map((tool) => tool.name);
    const tool = tools.find((each) => each.name === asked.get('tool'));
    const input = JSON.parse(asked.get('input') ?? '{}');
    const uri = getToolUiResourceUri(tool);
    happened.uri = uri;
    const { contents } = await client.readResource({ uri });
    if (contents.length !== 1 || contents[0].mimeType !== RESOURCE_MIME_TYPE) throw new Error('it is no page');
    const html = contents[0].text;
    const { csp, permissions } = contents[0]._meta?.ui ?? {};

    const frame = document.createElement('iframe');
    frame.setAttribute('sandbox', 'allow-scripts allow-same-origin allow-forms');
    frame.setAttribute('allow', buildAllowAttribute(permissions));
    const ready = new Promise((resolve) => {
        window.addEventListener('message', function listen({ source, data }) {
            if (source !== frame.contentWindow || data?.method !== 'ui/notifications/sandbox-proxy-ready') return;
            window.removeEventListener('message', listen);
            resolve();
        });
    });
    document.getElementById('name').textContent = tool.name;
    document.body.append(frame);
    frame.src = window.sandbox + '?csp=' + encodeURIComponent(JSON.stringify(csp ?? {}));
    await ready;

    const { tools: serverTools, resources: serverResources } = client.getServerCapabilities() ?? {};
    const context = { theme: asked.get('theme') ?? 'light', platform: 'web', displayMode: 'inline', availableDisplayModes: ['inline'] };
    if (asked.has('info')) context.toolInfo = { tool };
    const bridge = new AppBridge(
        client,
        { name: 'official-host', version: '1.0.0' },
        { serverTools, serverResources, updateModelContext: { text: {} } },
        { hostContext: context },
    );
    bridge.onsizechange = ({ width, height }) => {
        happened.sizes.push([width, height]);
        if (height) frame.style.height = height + 'px';
    };
    bridge.onupdatemodelcontext = async (params) => {
        happened.contexts.push(params);
        return {};
    };
    const initialized = new Promise((resolve) => (bridge.oninitialized = resolve));
    await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
    // A page may not call what is for models alone (SEP-1865, Visibility).
    const visibilities = new Map(tools.map(({ name, _meta }) => [name, _meta?.ui?.visibility ?? ['app']]));
    bridge.oncalltool = async (params) => {
        happened.calls.push(params.name);
        if (!(visibilities.get(params.name) ?? ['app']).includes('app')) throw new Error('it is not for pages');
        return client.callTool(params);
    };
    await bridge.sendSandboxResourceReady({ html, csp, permissions });
    await initialized;
    await bridge.sendToolInput({ arguments: input });
    await bridge.sendToolResult(await client.callTool({ name: tool.name, arguments: input }));
    happened.shown = true;
}

show().catch((error) => {
    happened.failure = String(error.stack ?? error);
});
`;

const SANDBOX = `<!doctype html><meta charset="utf-8"><title>Sandbox</title>
<style>html, body, iframe { margin: 0; width: 100%; height: 100%; border: 0; display: block; }</style><body>
<script>
const host = new URL(document.referrer).origin;
const inner = document.createElement('iframe');
inner.setAttribute('sandbox', 'allow-scripts allow-same-origin allow-forms');
document.body.append(inner);
addEventListener('message', ({ source, origin, data }) => {
    if (source === window.parent && origin === host) {
        if (data?.method === 'ui/notifications/sandbox-resource-ready') {
            const page = inner.contentDocument;
            page.open();
            page.write(data.params.html);
            page.close();
        } else {
            inner.contentWindow.postMessage(data, '*');
        }
    } else if (source === inner.contentWindow) {
        window.parent.postMessage(data, host);
    }
});
window.parent.postMessage({ jsonrpc: '2.0', method: 'ui/notifications/sandbox-proxy-ready', params: {} }, host);
</script>`;

function policy({ connectDomains = [], resourceDomains = [] }) {
    const loaded = resourceDomains.join(' ');
    return [
        "default-src 'none'",
        `script-src 'self' 'unsafe-inline' ${loaded}`,
        `style-src 'self' 'unsafe-inline' ${loaded}`,
        `img-src 'self' data: ${loaded}`,
        `connect-src ${connectDomains.join(' ') || "'none'"}`,
        "frame-src 'self'",
        "object-src 'none'",
    ].join('; ');
}

const built = await load('esbuild').build({
    stdin: { contents: HOST, resolveDir: modules, loader: 'js' },
    bundle: true, write: false, format: 'esm', platform: 'browser', logLevel: 'error',
});
const script = built.outputFiles[0].text;

const sandbox = createServer((request, response) => {
    const { searchParams } = new URL(request.url, 'http://localhost');
    response.setHeader('content-type', 'text/html');
    response.setHeader('content-security-policy', policy(JSON.parse(searchParams.get('csp') ?? '{}')));
    response.end(SANDBOX);
});
const host = createServer((request, response) => {
    const isScript = request.url.startsWith('/host.js');
    response.setHeader('content-type', isScript ? 'text/javascript' : 'text/html');
    const where = `http://localhost:${sandbox.address().port}/`;
    response.end(
        isScript
            ? script
            : `<!doctype html><meta charset="utf-8"><title>Host</title>
<style>body { margin: 1rem auto; max-width: 760px; font: 15px/1.5 system-ui, sans-serif; }
iframe { width: 100%; height: 12rem; border: 1px solid #ccd; border-radius: 10px; }</style>
<p>A host that is made of the official AppBridge shows the result of <code id="name"></code>:</p>
<script>window.sandbox = ${JSON.stringify(where)};</script><script type="module" src="/host.js"></script>`,
    );
});
sandbox.listen(0, 'localhost', () => {
    host.listen(0, 'localhost', () => console.log(`http://localhost:${host.address().port}/`));
});
