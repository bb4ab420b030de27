// What makes a page of the console live. Everything here can be left out: the pages read, and act, without it.
import { listen } from "./live.js";
import { keys } from "./keys.js";
import { acts } from "./acts.js";

const themes = () => {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const machine = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (machine.matches ? "dark" : "light");
  const toggle = () => {
    const next = now() === "dark" ? "light" : "dark";
    root.dataset.theme = next;
    document.cookie = `redrive_theme=${next}; path=${document.body.dataset.root || "/"}; max-age=31536000; samesite=strict`;
  };
  button.hidden = false;
  button.addEventListener("click", toggle);
  return toggle;
};

const menu = document.querySelector(".menu");
const wide = matchMedia("(min-width: 48.01rem)");
const fit = () => { menu.open = wide.matches; };
wide.addEventListener("change", fit);
fit();

// What was done is said once: going back or reloading does not say it again.
const here = new URL(location.href);
if (here.searchParams.has("did")) {
  here.searchParams.delete("did");
  here.searchParams.delete("n");
  history.replaceState(null, "", here);
}

keys(themes());
acts();
listen();
