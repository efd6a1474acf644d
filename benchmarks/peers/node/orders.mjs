// Takes orders on stdin, one line each, and answers each with one line on stdout; ends with stdin.
//   enqueue FIRST COUNT   puts these jobs in; answered when they are durable
//   publish NUMBER        puts one job in; answered with when that began and when it was durable
//   settled               answered with the number of jobs that are done for good
import { createInterface } from 'node:readline';
import { clock } from './ledger.mjs';

export async function takeOrders({ enqueue, unfinished, close }) {
	let put = 0;
	const orders = {
		async enqueue(first, count) {
			await enqueue(first, count);
			put += count;
			return 'done';
		},
		async publish(number) {
			const began = clock();
			await enqueue(number, 1);
			put += 1;
			return `${began} ${clock()}`;
		},
		async settled() {
			return put - (await unfinished());
		},
	};
	console.log('ready');
	for await (const line of createInterface({ input: process.stdin })) {
		const [order, ...numbers] = line.split(' ');
		console.log(await orders[order](...numbers.map(Number)));
	}
	await close();
}
