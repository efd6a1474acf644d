// One worker process: node worker.mjs '{"url": ..., "ledger": ..., "agenda": {...}}'
import { MongoBackend } from '@agendajs/mongo-backend';
import { Agenda } from 'agenda';
import { Ledger, serve } from './ledger.mjs';

const options = JSON.parse(process.argv[2]);
const ledger = new Ledger(options.ledger);
const agenda = new Agenda({ backend: new MongoBackend({ address: options.url }), ...options.agenda });
agenda.on('error', (error) => console.error(error));
agenda.define('count', async (job) => ledger.note(job.attrs.data.number));
await agenda.start();
serve(ledger, () => agenda.stop());
