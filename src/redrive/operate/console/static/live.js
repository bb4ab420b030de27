// Live: the server says what kind of thing has changed; the page is fetched anew and what differs is put in place.
// Rows never move under the pointer: while it is over a list, new rows wait and old ones stay.
import { morph } from "./morph.js";

const LEAST = 1000; // between two fetches
const CLOCK = 5000;

const sign = document.getElementById("live");
let held = null; // a page that waits for the pointer to leave
let fetching = false;
let again = false;
let last = -LEAST;

const say = (state, word) => {
  sign.dataset.state = state;
  sign.querySelector(".word").textContent = word;
};

const lists = () => [...document.querySelectorAll("[data-rows]")];
const overList = () => lists().some((list) => list.matches(":hover") || list.contains(document.activeElement));

const place = (page, { still }) => {
  const under = document.querySelector("[data-rows] > [data-key]:hover") || document.querySelector("[data-rows] > [aria-selected=true]");
  const before = under?.getBoundingClientRect().top;
  const waiting = morph(document.getElementById("main"), page.getElementById("main"), { still });
  morph(document.getElementById("screens"), page.getElementById("screens"), { still: false });
  document.title = page.title;
  if (under?.isConnected && still) {
    const moved = under.getBoundingClientRect().top - before;
    if (moved) scrollBy({ top: moved, behavior: "instant" });
  }
  held = waiting ? page : null;
  news(waiting);
};

const news = (waiting) => {
  let pill = document.querySelector(".news");
  if (!waiting) return pill?.remove();
  say("held", "waiting for the pointer");
  if (!pill) {
    pill = Object.assign(document.createElement("button"), { type: "button", className: "news" });
    pill.addEventListener("click", release);
  }
  pill.textContent = waiting === 1 ? "1 change" : `${waiting} changes`;
  const side = document.querySelector(".foot");
  if (!pill.isConnected) side.prepend(pill);
};

const release = () => {
  if (!held) return;
  place(held, { still: false });
  say("on", "live");
};

export const refresh = async (address = location.href) => {
  if (fetching || document.hidden) { again = true; return; }
  const pause = LEAST - (performance.now() - last);
  if (pause > 0) { again = true; setTimeout(() => { if (again) { again = false; refresh(); } }, pause); return; }
  fetching = true;
  again = false;
  last = performance.now();
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html", "X-Live": "1" } });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) return location.assign(answer.url);
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    say("on", "live");
    place(page, { still: overList() });
  } catch {
    say("lost", "not connected");
  } finally {
    fetching = false;
    if (again) setTimeout(refresh, LEAST);
  }
};

// A page that knows where something newer is (a long look) shows that, once.
const look = () => {
  const wish = document.querySelector("[data-look]");
  if (!wish) return;
  wish.textContent = "Looking…";
  refresh(wish.href);
};

const UNITS = [[172800, 86400, "days"], [7200, 3600, "h"], [120, 60, "min"], [0, 1, "s"]];
const words = (seconds) => {
  const span = Math.abs(seconds);
  if (span < 0.95) return "now";
  const [, unit, name] = UNITS.find(([least]) => span >= least);
  const said = span < 10 ? `${span.toFixed(0)} s` : `${Math.round(span / unit)} ${name}`;
  return seconds < 0 ? `${said} ago` : `in ${said}`;
};
const tell = () => {
  for (const each of document.querySelectorAll("time:not([data-fixed])")) {
    const said = words((Date.parse(each.dateTime) - Date.now()) / 1000);
    if (each.textContent !== said) each.textContent = said;
  }
};

export const listen = () => {
  setInterval(tell, CLOCK);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && again) refresh(); });
  document.addEventListener("pointerout", () => setTimeout(() => { if (held && !overList()) release(); }, 150));
  look();
  if (!document.body.dataset.topics) return say("off", "still");
  const { root, since } = document.body.dataset; // how things stood before this page was drawn
  const source = new EventSource(`${root}/api/v1/changes?since=${encodeURIComponent(since)}`);
  source.addEventListener("hello", () => say("on", "live"));
  source.addEventListener("changed", (event) => {
    const mine = new Set(document.body.dataset.topics.split(" ").filter(Boolean));
    if (JSON.parse(event.data).topics.some((topic) => mine.has(topic) || topic === "store")) refresh();
  });
  source.addEventListener("error", () => say("lost", "not connected"));
};
