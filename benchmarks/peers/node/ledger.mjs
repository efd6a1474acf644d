// What a job does: it notes its number, and when it began, in the ledger of its process. Lines are written down at most
// 50 ms after they were noted, and at the end, as benchmarks/ledger.py does it for Python.
import { closeSync, mkdirSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';

const FLUSH_MS = 50;

// The system's clock in seconds.
export function clock() {
	return ((performance.timeOrigin + performance.now()) / 1000).toFixed(6);
}

export class Ledger {
	constructor(folder) {
		mkdirSync(folder, { recursive: true });
		this.file = openSync(join(folder, `${process.pid}`), 'a');
		this.lines = [];
		this.timer = undefined;
	}

	note(number) {
		this.lines.push(`${number} ${clock()}\n`);
		this.timer ??= setTimeout(() => this.flush(), FLUSH_MS);
	}

	flush() {
		clearTimeout(this.timer);
		this.timer = undefined;
		if (this.lines.length > 0) {
			writeSync(this.file, this.lines.join(''));
			this.lines = [];
		}
	}

	close() {
		this.flush();
		closeSync(this.file);
	}
}

// Says on the log that this worker takes jobs, and ends it in order on TERM.
export function serve(ledger, stop) {
	process.once('SIGTERM', async () => {
		await stop();
		ledger.close();
		process.exit(0);
	});
	console.log('ready');
}
