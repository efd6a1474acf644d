// One worker process: node worker.mjs '{"url": ..., "ledger": ..., "worker": {...}}'
import { EventEmitter, once } from 'node:events';
import { run } from 'graphile-worker';
import { Ledger, serve } from './ledger.mjs';

const options = JSON.parse(process.argv[2]);
const ledger = new Ledger(options.ledger);
const events = new EventEmitter();
const listening = once(events, 'pool:listen:success');
const runner = await run({
	preset: { worker: { connectionString: options.url, ...options.worker } },
	events,
	noHandleSignals: true,
	parsedCronItems: [],
	taskList: {
		count: ({ number }) => ledger.note(number),
	},
});
await listening;
serve(ledger, () => runner.stop());
