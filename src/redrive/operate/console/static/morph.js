// Morph: make one tree like another by changing as little as possible. What somebody is using is left alone:
// forms (data-keep), open details, ticked boxes, the chosen row. Returns how many rows had to wait.
export const morph = (now, next, options) => {
  const state = { still: options.still, waiting: 0 };
  children(now, next, state);
  return state.waiting;
};

const OURS = new Set(["aria-selected", "open"]);
// By its attributes: a field called "id" would stand in for the id of its form.
const name = (node) => node.nodeType === 1 ? node.getAttribute("data-key") || node.getAttribute("id") || "" : "";
const alike = (one, two) => one.nodeType === two.nodeType && one.nodeName === two.nodeName && name(one) === name(two);

const element = (now, next, state) => {
  if (now.hasAttribute("data-keep") && next.hasAttribute("data-keep")) {
    // A form in use stays; one that nobody touches may be drawn anew.
    if (now.dataset.keep === "always" || now.contains(document.activeElement) || now.querySelector("details[open]") || dirty(now)) return;
  }
  for (const { name: key } of [...now.attributes]) if (!next.hasAttribute(key) && !OURS.has(key)) now.removeAttribute(key);
  for (const { name: key, value } of next.attributes) if (!OURS.has(key) && now.getAttribute(key) !== value) now.setAttribute(key, value);
  if (now.localName === "input" || now.localName === "textarea") return;
  children(now, next, state);
};

const dirty = (part) => [...part.querySelectorAll("input, textarea")].some((field) =>
  field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue);

const children = (now, next, state) => {
  if (now.hasAttribute?.("data-rows")) return rows(now, next, state);
  const wanted = [...next.childNodes];
  const names = new Set(wanted.map(name).filter(Boolean));
  const pool = new Map();
  for (const each of now.childNodes) if (name(each)) pool.set(name(each), each);
  let at = now.firstChild;
  const drop = () => {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  };
  for (const each of wanted) {
    const known = pool.get(name(each));
    // What is not wanted any more goes first: to move what stays would take the focus from it.
    while (at && name(at) && !names.has(name(at))) drop();
    if (known && alike(known, each)) {
      while (at && at !== known && !names.has(name(at))) drop();
      if (known === at) at = at.nextSibling;
      else now.insertBefore(known, at);
      element(known, each, state);
    } else if (at && !name(at) && alike(at, each)) {
      const same = at;
      at = at.nextSibling;
      if (same.nodeType === 1) element(same, each, state);
      else if (same.nodeValue !== each.nodeValue) same.nodeValue = each.nodeValue;
    } else {
      now.insertBefore(document.importNode(each, true), at);
    }
  }
  while (at) drop();
};

// Rows are known by their keys. While they must keep still, those that are here are brought up to date where they stand;
// new ones wait, and those that left stay, dimmed.
const rows = (now, next, state) => {
  const known = new Map([...now.children].map((row) => [row.dataset.key, row]));
  const wanted = [...next.children];
  if (state.still) {
    for (const row of wanted) {
      const mine = known.get(row.dataset.key);
      if (mine) element(mine, row, state);
      else state.waiting += 1;
      known.delete(row.dataset.key);
    }
    for (const row of known.values()) {
      row.classList.add("gone");
      state.waiting += 1;
    }
    return;
  }
  let at = now.firstElementChild;
  for (const row of wanted) {
    const mine = known.get(row.dataset.key);
    if (mine) {
      if (mine === at) at = at.nextElementSibling;
      else now.insertBefore(mine, at);
      element(mine, row, state);
      known.delete(row.dataset.key);
    } else {
      const made = document.importNode(row, true);
      made.classList.add("fresh");
      now.insertBefore(made, at);
      setTimeout(() => made.classList.remove("fresh"), 1500);
    }
  }
  for (const row of known.values()) row.remove();
};
