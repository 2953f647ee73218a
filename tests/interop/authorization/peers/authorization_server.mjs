// A real authorization server for the tests: oidc-provider, with everything in memory.
//
// Usage: authorization_server.mjs MODULES SETTINGS
//
// MODULES is a directory with a node_modules folder. SETTINGS is JSON:
//   dpop         "no", "yes", or "nonces" (a proof at the token endpoint needs a nonce)
//   opaque       access tokens are opaque, and a resource server must introspect them
//   consent      a person logs in and consents on two pages; otherwise every login is alice's, and all is granted
//   lifetime     seconds that an access token lives
//   workloadKey  the public JWK of the client that authenticates by private_key_jwt
//   trusted      {issuer: public JWK} whose assertions are exchanged for tokens (RFC 7523)
//
// The first line that it writes is "serving ISSUER". After that it tells each grant and each refusal in a line
// without secrets, so that a test can count them.

import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, settingsText] = process.argv.slice(2);
const settings = { dpop: 'no', opaque: false, consent: false, lifetime: 60, trusted: {}, ...JSON.parse(settingsText) };
const require = createRequire(join(modules, 'package.json'));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { default: Provider, errors } = await load('oidc-provider');
const { decodeJwt, decodeProtectedHeader, exportJWK, generateKeyPair, importJWK, jwtVerify } = await load('jose');

const SCOPES = ['mcp:read', 'mcp:write', 'mcp:admin'];
const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
const METADATA_URL = 'https://client.test/metadata.json';
// One process serves the resource servers of many tests, each at a port of its own.
const RESOURCE = /^(http|ws):\/\/127\.0\.0\.1:\d+\/(mcp|ws)$/;

const server = createServer();
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const { privateKey } = await generateKeyPair('ES256', { extractable: true });
const signingKey = { ...(await exportJWK(privateKey)), use: 'sig', alg: 'ES256', kid: 'first' };

// The document of a client that has its URL as its id. Such a URL is https: no server on this machine could have it.
const clientMetadata = {
    client_id: METADATA_URL,
    client_name: 'a client with a metadata document',
    redirect_uris: ['http://127.0.0.1/callback'],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
    application_type: 'native'
};

const aMachine = { redirect_uris: [], response_types: [], grant_types: ['client_credentials'] };
const clients = [
    {
        client_id: 'registered',
        client_secret: 'registered-secret',
        application_type: 'native',
        redirect_uris: ['http://127.0.0.1/callback'],
        grant_types: ['authorization_code', 'refresh_token']
    },
    { client_id: 'machine', client_secret: 'machine-secret', ...aMachine },
    { client_id: 'workload', token_endpoint_auth_method: 'none', ...aMachine, grant_types: [JWT_BEARER] },
    { client_id: 'enterprise', client_secret: 'enterprise-secret', ...aMachine, grant_types: [JWT_BEARER] },
    { client_id: 'resource-server', client_secret: 'resource-server-secret', ...aMachine, grant_types: [] }
];
if (settings.workloadKey) {
    clients.push({
        client_id: 'machine-with-key',
        token_endpoint_auth_method: 'private_key_jwt',
        token_endpoint_auth_signing_alg: 'ES256',
        ...aMachine,
        jwks: { keys: [{ ...settings.workloadKey, alg: 'ES256', use: 'sig' }] }
    });
}

const describe = (resource) => ({
    scope: SCOPES.join(' '),
    audience: resource,
    accessTokenFormat: settings.opaque ? 'opaque' : 'jwt',
    jwt: { sign: { alg: 'ES256' } }
});

async function findGrant(ctx) {
    const { client, params, result, session } = ctx.oidc;
    const known = result?.consent?.grantId ?? session.grantIdFor(client.clientId);
    if (settings.consent) return known && provider.Grant.find(known);
    const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
    grant.addOIDCScope(`openid offline_access ${SCOPES.join(' ')}`);
    for (const resource of [params.resource ?? []].flat()) grant.addResourceScope(resource, SCOPES.join(' '));
    await grant.save();
    return grant;
}

const provider = new Provider(issuer, {
    clients,
    jwks: { keys: [signingKey] },
    cookies: { keys: [randomBytes(16).toString('hex')] },
    scopes: ['openid', 'offline_access', ...SCOPES],
    pkce: { required: () => true },
    clientDefaults: { id_token_signed_response_alg: 'ES256' },
    ttl: {
        AccessToken: settings.lifetime,
        ClientCredentials: settings.lifetime,
        RefreshToken: 600,
        AuthorizationCode: 60,
        Interaction: 600,
        Session: 600,
        Grant: 600
    },
    rotateRefreshToken: true,
    issueRefreshToken: (ctx, client) => client.grantTypeAllowed('refresh_token'),
    findAccount: (ctx, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
    loadExistingGrant: findGrant,
    interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
    fetch: async (url, options) => (String(url) === METADATA_URL ? Response.json(clientMetadata) : fetch(url, options)),
    features: {
        devInteractions: { enabled: false },
        registration: { enabled: true },
        revocation: { enabled: true },
        introspection: { enabled: true },
        clientCredentials: { enabled: true },
        clientIdMetadataDocument: { enabled: true, ack: 'draft-02', allowFetch: () => true },
        dPoP: {
            enabled: settings.dpop !== 'no',
            nonceSecret: randomBytes(32),
            requireNonce: () => settings.dpop === 'nonces'
        },
        resourceIndicators: {
            enabled: true,
            defaultResource: () => undefined,
            useGrantedResource: () => true,
            getResourceServerInfo: (ctx, resource) => {
                if (!RESOURCE.test(resource)) throw new errors.InvalidTarget();
                return describe(resource);
            }
        }
    },
    enabledJWA: { dPoPSigningAlgValues: ['ES256', 'EdDSA'] }
});

async function verified(assertion) {
    const key = settings.trusted[decodeJwt(assertion).iss];
    const { payload } = await jwtVerify(assertion, await importJWK(key, 'ES256'), {
        audience: issuer,
        algorithms: ['ES256'],
        requiredClaims: ['sub', 'exp', 'iat', 'jti']
    });
    return payload;
}

// An assertion of a workload's platform, or of an enterprise's identity provider, becomes an access token.
async function exchange(ctx) {
    const { client, params } = ctx.oidc;
    const refuse = (reason) => {
        throw new errors.InvalidGrant(reason);
    };
    const claims = await verified(params.assertion).catch(() => refuse('assertion is not valid'));
    const isEnterprise = client.clientId === 'enterprise';
    const isIdJag = decodeProtectedHeader(params.assertion).typ === 'oauth-id-jag+jwt';
    if (isIdJag !== isEnterprise) refuse('assertion of another kind');
    if (isIdJag && claims.client_id !== client.clientId) refuse('assertion for another client');
    if (isIdJag && claims.resource !== params.resource) refuse('assertion for another resource');
    if (!(await provider.ReplayDetection.unique(claims.iss, claims.jti, claims.exp))) refuse('assertion used before');
    if (!RESOURCE.test(params.resource)) throw new errors.InvalidTarget();
    const scope = params.scope ?? claims.scope ?? 'mcp:read';
    const token = new provider.AccessToken({
        accountId: claims.sub,
        client,
        scope,
        gty: 'jwt_bearer',
        grantId: claims.jti
    });
    token.resourceServer = new provider.ResourceServer(params.resource, describe(params.resource));
    ctx.body = { access_token: await token.save(), token_type: 'Bearer', expires_in: token.expiration, scope };
}

provider.registerGrantType(JWT_BEARER, exchange, ['assertion', 'resource', 'scope'], []);

const tell = (...words) => console.log(words.filter(Boolean).join(' '));
provider.on('registration_create.success', (ctx, client) => tell('registered', client.applicationType));
provider.on('authorization.success', (ctx) => tell('authorized', ctx.oidc.params.scope));
provider.on('authorization.error', (ctx, error) => tell('not authorized', error.error));
provider.on('grant.success', (ctx) => tell('granted', ctx.oidc.params.grant_type, ctx.oidc.client.clientId));
provider.on('grant.error', (ctx, error) => {
    const { client, params } = ctx.oidc;
    tell('refused', params?.grant_type, client?.clientId, error.error);
});
provider.on('grant.revoked', () => tell('revoked a grant'));
provider.on('server_error', (ctx, error) => tell('broken', error.stack));

const page = (title, form) =>
    `<!DOCTYPE html><title>${title}</title><h1>${title}</h1><form method="post">${form}</form>`;
const PAGES = {
    login: page('Log in', '<input name="user" id="user"><button id="log-in">Log in</button>'),
    consent: page('Consent', '<button id="consent" name="consent" value="yes">Allow</button>')
};

async function form(request) {
    let text = '';
    for await (const chunk of request) text += chunk;
    return new URLSearchParams(text);
}

async function consented({ params, session }) {
    const grant = new provider.Grant({ clientId: params.client_id, accountId: session.accountId });
    grant.addOIDCScope(params.scope ?? '');
    grant.addResourceScope(params.resource, params.scope ?? '');
    return { consent: { grantId: await grant.save() } };
}

async function interact(request, response) {
    const details = await provider.interactionDetails(request, response);
    const { name } = details.prompt;
    if (!settings.consent) {
        await provider.interactionFinished(request, response, { login: { accountId: 'alice' }, consent: {} });
    } else if (request.method === 'GET') {
        tell('showed', name);
        response.writeHead(200, { 'content-type': 'text/html' }).end(PAGES[name]);
    } else {
        const fields = await form(request);
        const result = name === 'login' ? { login: { accountId: fields.get('user') } } : await consented(details);
        await provider.interactionFinished(request, response, result);
    }
}

const answer = provider.callback();
server.on('request', (request, response) => {
    if (!request.url.startsWith('/interaction/')) return answer(request, response);
    return interact(request, response).catch((error) => {
        tell('broken', error.stack);
        response.writeHead(500).end();
    });
});
tell('serving', issuer);
