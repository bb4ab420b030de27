// Drain no-ops with graphile-worker, as its own performance page sets it up: local queue of 500, batched completion.
import { fileURLToPath } from "node:url";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { main, now, payload, untilQuiet } from "./shared.mjs";

const logger = new Logger(() => () => {});

async function fill(url, events) {
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  await utils.migrate();
  for (let first = 0; first < events; first += 5000) {
    const length = Math.min(5000, events - first);
    await utils.addJobs(Array.from({ length }, (_, n) => ({ identifier: "bench", payload: payload(first + n) })));
  }
  await utils.release();
  const client = new pg.Client(url);
  await client.connect();
  await client.query("vacuum analyze");
  await client.query("checkpoint");
  await client.end();
}

async function work(url) {
  let count = 0;
  const began = now();
  const runner = await run({
    taskList: {
      bench: async () => {
        count += 1;
      },
    },
    preset: {
      worker: {
        connectionString: url,
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
        logger,
      },
    },
  });
  const ended = await untilQuiet(() => count);
  await runner.stop();
  return { count, began, ended };
}

await main(fileURLToPath(import.meta.url), fill, work);
