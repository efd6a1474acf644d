// Puts jobs in, and says how many are done: node enqueue.mjs '{"url": ..., "atOnce": ...}'
import { MongoBackend } from '@agendajs/mongo-backend';
import { Agenda } from 'agenda';
import { MongoClient } from 'mongodb';
import { takeOrders } from './orders.mjs';

const { url, atOnce } = JSON.parse(process.argv[2]);
const client = await MongoClient.connect(url);
const jobs = client.db().collection('agendaJobs');
const agenda = new Agenda({ backend: new MongoBackend({ mongo: client.db() }) });
await agenda.ready;

// It has no call for many jobs: as many calls are under way at a time as the driver has connections.
async function enqueue(first, count) {
	let next = first;
	const some = async () => {
		while (next < first + count) {
			const number = next;
			next += 1;
			await agenda.now('count', { number });
		}
	};
	await Promise.all(Array.from({ length: Math.min(atOnce, count) }, some));
}

// A job that waits has a time to run at, and one that is taken has a lock; done, it has neither.
async function unfinished() {
	const past = new Date(0);
	const waiting = await jobs.countDocuments({ name: 'count', nextRunAt: { $gt: past } });
	const taken = await jobs.countDocuments({ name: 'count', nextRunAt: null, lockedAt: { $gt: past } });
	return waiting + taken;
}

await takeOrders({ enqueue, unfinished, close: () => client.close() });
