// What both generations share: how a handler tells the load beside the protocol, and the one resource.

import { appendFileSync } from 'node:fs';

export const LONGEST = 600000; // milliseconds a quiet connection is kept

export function tell(word) {
    const seconds = Number(process.hrtime.bigint()) / 1e9;
    appendFileSync(process.env.MCP_BENCHMARK_TELL, `${word} ${seconds}\n`);
}

export function until(signal) {
    return new Promise((resolve) => {
        if (signal.aborted) resolve();
        else signal.addEventListener('abort', resolve, { once: true });
    });
}

export function sayItem(uri) {
    return { contents: [{ uri: uri.href ?? String(uri), text: 'an item' }] };
}
