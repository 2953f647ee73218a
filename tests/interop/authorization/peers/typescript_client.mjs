// The official TypeScript SDK's client logs in to a server, calls it, and prints one JSON report.
//
// Usage: typescript_client.mjs MODULES legacy|auto SETTINGS URL
//
// MODULES is a directory with a node_modules folder. SETTINGS is JSON: "tools" to call one after the other, where
// "expire" forgets the access token but not the refresh token, "grant" ("code", "secret" or "key"), "client_id",
// "client_secret", "private_key", "metadata_url", and "dpop" for tokens that are bound to a key.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, mode, settingsText, address] = process.argv.slice(2);
const settings = { grant: 'code', tools: ['whoami'], dpop: false, ...JSON.parse(settingsText) };
const load = createRequire(join(modules, 'package.json'));
const {
    Client,
    ClientCredentialsProvider,
    DpopSession,
    PrivateKeyJwtProvider,
    StreamableHTTPClientTransport,
    UnauthorizedError
} = load('@modelcontextprotocol/client');

const LIMIT = 130_000; // milliseconds for the whole run
const REDIRECT = 'http://127.0.0.1:8765/callback'; // nobody listens there: redirects are followed by hand

class Provider {
    #client;
    #tokens;
    #verifier;
    #state;
    logins = 0;
    received = 0;
    answer;
    clientMetadataUrl = settings.metadata_url;
    redirectUrl = REDIRECT;
    clientMetadata = {
        client_name: 'official-typescript',
        redirect_uris: [REDIRECT],
        application_type: 'native',
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none'
    };

    constructor() {
        const { client_id, client_secret } = settings;
        if (client_id) this.#client = { client_id, client_secret };
        if (settings.dpop) this.session = DpopSession.create();
    }

    dpop = () => this.session;
    state = () => (this.#state = crypto.randomUUID());
    clientInformation = () => this.#client;
    saveClientInformation = (client) => void (this.#client = client);
    tokens = () => this.#tokens;
    saveTokens(tokens) {
        this.#tokens = tokens;
        this.received += 1;
    }
    expire() {
        this.#tokens = { ...this.#tokens, access_token: 'expired' };
    }
    codeVerifier = () => this.#verifier;
    saveCodeVerifier = (verifier) => void (this.#verifier = verifier);

    // Opens the login page and goes wherever it leads, until it leads back to the client. Of a page with a form the
    // first button is pressed.
    async redirectToAuthorization(url) {
        this.logins += 1;
        const jar = new Map();
        let body;
        while (!url.href.startsWith(REDIRECT)) {
            const cookie = [...jar].map(([name, value]) => `${name}=${value}`).join('; ');
            const method = body ? 'POST' : 'GET';
            const response = await fetch(url, { method, body, redirect: 'manual', headers: { cookie } });
            body = undefined;
            for (const line of response.headers.getSetCookie()) {
                const [name, value] = line.split(';')[0].split('=');
                jar.set(name, value);
            }
            const location = response.headers.get('location');
            if (!location) {
                const page = await response.text();
                const form = page.match(/<form method="post" action="([^"]+)">/);
                if (!form) throw new Error(`no way from ${url.pathname}: ${response.status} ${page}`);
                body = new URLSearchParams();
                for (const [, name, value] of page.matchAll(/<input type="hidden" name="([^"]+)" value="([^"]+)">/g)) {
                    body.set(name, value);
                }
                const [, name, value] = page.match(/<button name="([^"]+)" value="([^"]+)"/);
                body.set(name, value);
                url = new URL(form[1], url);
                continue;
            }
            url = new URL(location, url);
        }
        if (url.searchParams.get('state') !== this.#state) throw new Error('another state');
        this.answer = url.searchParams;
    }
}

const { client_id: clientId, client_secret: clientSecret, private_key: privateKey } = settings;
const providers = {
    code: () => new Provider(),
    secret: () => new ClientCredentialsProvider({ clientId, clientSecret }),
    key: () => new PrivateKeyJwtProvider({ clientId, privateKey, algorithm: 'ES256' })
};

async function main() {
    const authProvider = providers[settings.grant]();
    const report = { calls: [] };
    let client;
    let transport;
    // The SDK gives up when a person must log in: whoever uses it hands over the answer and tries again.
    const withLogin = async (operation) => {
        try {
            return await operation();
        } catch (error) {
            if (!(error instanceof UnauthorizedError) || !authProvider.answer) throw error;
            await transport.finishAuth(authProvider.answer);
            return operation();
        }
    };
    await withLogin(async () => {
        client = new Client({ name: 'official-typescript', version: '1.0.0' }, { versionNegotiation: { mode } });
        transport = new StreamableHTTPClientTransport(new URL(address), { authProvider });
        await client.connect(transport);
    });
    report.version = client.getNegotiatedProtocolVersion();
    for (const name of settings.tools) {
        if (name === 'expire') {
            authProvider.expire();
            continue;
        }
        try {
            const result = await withLogin(() => client.callTool({ name, arguments: {} }));
            report.calls.push([name, result.content[0].text]);
        } catch (error) {
            report.calls.push([name, { error: error.message }]);
        }
    }
    await client.close();
    report.client_id = (await authProvider.clientInformation()).client_id;
    report.logins = authProvider.logins ?? 0;
    report.tokens = authProvider.received;
    process.stdout.write(JSON.stringify(report) + '\n');
}

const timer = setTimeout(() => {
    console.error(`not finished after ${LIMIT} ms`);
    process.exit(3);
}, LIMIT);
main().then(
    () => clearTimeout(timer),
    (error) => {
        console.error(error);
        process.exit(1);
    }
);
