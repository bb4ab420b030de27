// Fill, then run one worker process or several, then print {"count": …, "seconds": …} as the Python peers do.
import { spawn } from "node:child_process";

export async function main(script, fill, work) {
  const order = JSON.parse(process.argv[2]);
  if (order.child) {
    console.log(JSON.stringify(await work(order.url)));
    process.exit(0);
  }
  await fill(order.url, order.events);
  const child = JSON.stringify({ url: order.url, child: true });
  const found = await Promise.all(Array.from({ length: order.processes }, () => run(script, child)));
  const seconds = (Math.max(...found.map((one) => one.ended)) - Math.min(...found.map((one) => one.began))) / 1000;
  console.log(JSON.stringify({ count: found.reduce((sum, one) => sum + one.count, 0), seconds }));
  process.exit(0);
}

function run(script, order) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [script, order], { stdio: ["ignore", "pipe", "inherit"] });
    let output = "";
    child.stdout.on("data", (data) => (output += data));
    child.on("error", reject);
    child.on("close", (code) =>
      code === 0 ? resolve(JSON.parse(output.trim().split("\n").pop())) : reject(new Error(`ended with ${code}`)),
    );
  });
}

// Milliseconds on a clock that all processes of this machine share.
export const now = () => Number(process.hrtime.bigint()) / 1e6;

export const payload = (n) => ({ n, text: "x".repeat(75) });

// Resolves with the time of the last event once none has come for a while.
export function untilQuiet(count, quiet = 1000) {
  return new Promise((resolve) => {
    let last = -1;
    let changed = now();
    const timer = setInterval(() => {
      if (count() !== last) {
        last = count();
        changed = now();
      } else if (last > 0 && now() - changed > quiet) {
        clearInterval(timer);
        resolve(changed);
      } else if (now() - changed > 20 * quiet) {
        clearInterval(timer);
        resolve(changed);
      }
    }, 2);
  });
}
