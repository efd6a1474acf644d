// Puts jobs in, and says how many are done: node enqueue.mjs '{"url": ..., "chunk": ...}'
import { makeWorkerUtils } from 'graphile-worker';
import { takeOrders } from './orders.mjs';

const { url, chunk } = JSON.parse(process.argv[2]);
const utils = await makeWorkerUtils({ connectionString: url, maxPoolSize: 2 });
await utils.migrate();

async function enqueue(first, count) {
	const end = first + count;
	for (let from = first; from < end; from += chunk) {
		const jobs = [];
		for (let number = from; number < Math.min(from + chunk, end); number += 1) {
			jobs.push({ identifier: 'count', payload: { number } });
		}
		await utils.addJobs(jobs);
	}
}

// A job that succeeded is gone; one that failed stays.
async function unfinished() {
	const { rows } = await utils.withPgClient((client) =>
		client.query('select count(*)::int as count from graphile_worker._private_jobs'),
	);
	return rows[0].count;
}

await takeOrders({ enqueue, unfinished, close: () => utils.release() });
