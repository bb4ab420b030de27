// Keys: j and k walk through the rows, x ticks, Enter opens, / finds, g and a letter goes to a screen.
const rows = () => [...document.querySelectorAll("[data-rows] > [data-key]")];
const chosen = () => document.querySelector("[data-rows] > [aria-selected=true]");

const choose = (row) => {
  chosen()?.removeAttribute("aria-selected");
  if (!row) return;
  row.setAttribute("aria-selected", "true");
  row.scrollIntoView({ block: "nearest" });
};

const walk = (by) => {
  const all = rows();
  const at = all.indexOf(chosen());
  choose(all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]);
};

const tick = () => {
  const box = chosen()?.querySelector("input[type=checkbox][name=id]");
  if (!box) return;
  box.checked = !box.checked;
  count();
};

const open = () => {
  const row = chosen();
  if (row?.dataset.href) location.assign(row.dataset.href);
  return Boolean(row?.dataset.href);
};

const count = () => {
  const words = document.getElementById("ticked");
  if (!words) return;
  const number = document.querySelectorAll("input[name=id]:checked").length;
  words.textContent = number ? `With the ${number} ticked:` : "With all that are meant:";
};

export const keys = (toggle) => {
  const dialog = document.getElementById("keys");
  const help = document.getElementById("help");
  const find = () => {
    const field = document.querySelector("main form[role=search] input") || document.getElementById("find");
    field.focus();
    field.select();
  };
  const verbs = { j: () => walk(1), k: () => walk(-1), x: tick, "/": find, "?": () => dialog.showModal(), t: toggle };
  let going = 0;

  help.hidden = false;
  help.addEventListener("click", () => dialog.showModal());
  const all = document.getElementById("tick-all");
  if (all) {
    all.hidden = false;
    all.addEventListener("change", () => {
      for (const each of document.querySelectorAll("input[name=id]")) each.checked = all.checked;
      count();
    });
  }
  document.addEventListener("change", (event) => { if (event.target.name === "id") count(); });
  count();

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog[open]");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && typing && typing.localName === "input") return typing.blur();
    if (typing) return;
    if (going && performance.now() - going < 1500) {
      going = 0;
      const place = [...document.querySelectorAll("[data-go]")].find((each) => each.dataset.go === event.key);
      if (place) {
        event.preventDefault();
        location.assign(place.href);
      }
      return;
    }
    if (event.key === "g") {
      going = performance.now();
    } else if (event.key === "Enter") {
      // A dialog that has just been closed may still have the focus for a moment.
      if (!event.target.closest?.("a, button, summary, input")?.checkVisibility() && open()) event.preventDefault();
    } else if (Object.hasOwn(verbs, event.key)) {
      event.preventDefault();
      verbs[event.key]();
    }
  });
};
