// Drain no-ops with pg-boss: batches of 1,000, fetching on while batches come back full, four fetchers. Not tuned.
import { fileURLToPath } from "node:url";
import pg from "pg";
import { PgBoss } from "pg-boss";
import { main, now, payload, untilQuiet } from "./shared.mjs";

const QUEUE = "bench";
const BATCH = 1000;
const FETCHERS = 4;

async function open(url, maintained) {
  const boss = new PgBoss({ connectionString: url, supervise: maintained, schedule: false });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function fill(url, events) {
  const boss = await open(url, false);
  await boss.createQueue(QUEUE);
  for (let first = 0; first < events; first += 5000) {
    const length = Math.min(5000, events - first);
    await boss.insert(QUEUE, Array.from({ length }, (_, n) => ({ data: payload(first + n) })));
  }
  await boss.stop({ graceful: false });
  const client = new pg.Client(url);
  await client.connect();
  await client.query("vacuum analyze");
  await client.query("checkpoint");
  await client.end();
}

async function work(url) {
  const boss = await open(url, false);
  let count = 0;
  const began = now();
  await boss.work(
    QUEUE,
    { batchSize: BATCH, localConcurrency: FETCHERS, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true },
    async (jobs) => {
      count += jobs.length;
    },
  );
  const ended = await untilQuiet(() => count, 1500);
  await boss.stop({ graceful: true, timeout: 5000 });
  return { count, began, ended };
}

await main(fileURLToPath(import.meta.url), fill, work);
